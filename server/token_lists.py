"""Fields that name tokens of the vocabulary: each id is checked, and all of them together are bounded."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from ..errors import InvalidRequest
from ..mailbox.messages.sampling import SamplingParams
from ..topology.boards import MAX_SAMPLING_ENTRIES
from .request_body import decode_field, is_null, printable_name, wrong_field

MAX_BIAS = 100.0
"""Larger values mean the same: always, or never."""
MAX_SHOWN_KEYS = 20

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_BIASES_DECODER = msgspec.json.Decoder(Annotated[dict[str, float], Meta(max_length=MAX_SAMPLING_ENTRIES)])
_RAW_DECODER = msgspec.json.Decoder(dict[str, Raw])
_BIAS_DECODER = msgspec.json.Decoder(float)


def out_of_vocabulary(token_id: int, param: str, vocab_size: int) -> InvalidRequest:
    """For an id that no token has."""
    return InvalidRequest(
        f"{param}: token id {token_id} is out of vocabulary: the ids of this model are 0 to {vocab_size - 1} "
        f"(vocabulary size {vocab_size})",
        param=param,
    )


def check_ids(token_ids: Sequence[int], param: str, vocab_size: int) -> None:
    """`token_ids` are some. Raises InvalidRequest that names one of those that no token has."""
    smallest, largest = min(token_ids), max(token_ids)
    if smallest < 0:
        raise out_of_vocabulary(smallest, param, vocab_size)
    if largest >= vocab_size:
        raise out_of_vocabulary(largest, param, vocab_size)


def distinct_ids(token_ids: Sequence[int], param: str, vocab_size: int) -> tuple[int, ...]:
    """Each once, in their order. Raises InvalidRequest."""
    if token_ids:
        check_ids(token_ids, param, vocab_size)
    return tuple(dict.fromkeys(token_ids))


def logit_bias_of(raw: Raw, vocab_size: int) -> tuple[tuple[int, float], ...]:
    """(token id, bias limited to +-100) with distinct ids; none for null. Raises InvalidRequest that names the wrong
    keys."""
    if is_null(raw):
        return ()
    given = _biases(raw)
    wrong = [key for key in given if _INTEGER.fullmatch(key) is None]
    if wrong:
        shown = ", ".join(repr(printable_name(key)) for key in wrong[:MAX_SHOWN_KEYS])
        more = f" and {len(wrong) - MAX_SHOWN_KEYS:,} more" if len(wrong) > MAX_SHOWN_KEYS else ""
        raise InvalidRequest(f"logit_bias: keys that are no token ids: {shown}{more}", param="logit_bias")
    biases = {int(key): max(-MAX_BIAS, min(MAX_BIAS, bias)) for key, bias in given.items()}
    if biases:
        check_ids(list(biases), "logit_bias", vocab_size)
    return tuple(biases.items())


def _biases(raw: Raw) -> dict[str, float]:
    try:
        return _BIASES_DECODER.decode(raw)
    except msgspec.DecodeError as error:  # names no key: look for the one that it is about
        whole = wrong_field(error, "logit_bias")
    for key, bias in decode_field(raw, _RAW_DECODER, "logit_bias").items():
        decode_field(bias, _BIAS_DECODER, f"logit_bias.{printable_name(key)}")
    raise whole


def check_num_entries(sampling: SamplingParams) -> None:
    """Raises InvalidRequest if the lists are more than a step's plan has room for; a bad word counts as two entries
    here, the least that it can become."""
    num_entries = sampling.num_entries + 2 * len(sampling.bad_words)
    if num_entries > MAX_SAMPLING_ENTRIES:
        counts = {
            "logit_bias": len(sampling.logit_bias),
            "allowed_token_ids": len(sampling.allowed_token_ids),
            "stop_token_ids": len(sampling.stop_token_ids),
            "bad_words": 2 * len(sampling.bad_words),
        }
        largest = max(counts, key=lambda name: counts[name])
        listed = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
        raise InvalidRequest(
            f"{largest}: the token lists of this request have {num_entries:,} entries together ({listed}), the "
            f"limit is {MAX_SAMPLING_ENTRIES:,}",
            param=largest,
        )
