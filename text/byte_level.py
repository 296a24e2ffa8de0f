"""The byte-level alphabet: every byte has a printable character of its own, so that a vocabulary can be text.

Source: GPT-2's encoder (Radford et al. 2019). The 188 printable bytes of Latin-1 stand for themselves, the other 68 for
U+0100 and on, in ascending order.
"""

from __future__ import annotations

import codecs

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

CHARACTER_TO_BYTE: dict[str, int] = {chr(byte): byte for byte in _PRINTABLE}
CHARACTER_TO_BYTE.update({chr(256 + index): byte for index, byte in enumerate(_OTHERS)})


_CHARACTERS = {byte: character for character, byte in CHARACTER_TO_BYTE.items()}
_ENCODING = codecs.charmap_build("".join(_CHARACTERS[byte] for byte in range(256)))


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a byte-level token; a token with a character outside the alphabet is an added one: its own UTF-8."""
    try:
        return codecs.charmap_encode(token, "strict", _ENCODING)[0]
    except UnicodeEncodeError:
        return token.encode()
