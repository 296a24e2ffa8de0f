"""Ids of tool calls, each a function of a key that the caller gives, so that a restart finds the same ones again."""

from __future__ import annotations

import hashlib

from .form import Family
from .parser import MakeId

_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


def call_ids(family: Family, key: str, *, num_before: int = 0) -> MakeId:
    """Ids in the family's form. `key`: what tells this answer from all others, as the request's id and the choice.

    `num_before`: calls in the messages before, which ids that are numbers of calls go on from.
    """

    def make_id(index: int, name: str) -> str:
        if family.call_id == "numbered":
            return f"functions.{name}:{num_before + index}"
        number = int.from_bytes(hashlib.blake2b(f"{key}\0{index}".encode(), digest_size=24).digest(), "big")
        length, prefix = (9, "") if family.call_id == "nine" else (24, "call_")
        characters = []
        for _ in range(length):
            number, digit = divmod(number, len(_ALPHABET))
            characters.append(_ALPHABET[digit])
        return prefix + "".join(characters)

    return make_id
