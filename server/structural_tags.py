"""`structural_tag`: pieces of an answer between given texts, each of a schema of its own, with free text around them.

Its earlier form has `structures` and `triggers`, the later one `format` (`structure_fields.py`); each also as a string
that holds its JSON text.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from ..errors import InvalidRequest
from ..mailbox.messages.grammar import StructureFormat, Tag, TagsFormat
from .request_body import NULL, decode_field, is_null
from .structure_fields import structure_of

MAX_TAGS = 1024

NonEmpty = Annotated[str, Meta(min_length=1)]


class Structure(msgspec.Struct, frozen=True):
    """One kind of piece."""

    begin: NonEmpty
    schema: Raw
    end: str = ""


class StructuralTag(msgspec.Struct, frozen=True):
    """What the field holds."""

    structures: Annotated[list[Structure], Meta(min_length=1, max_length=MAX_TAGS)] | None = None
    triggers: Annotated[list[NonEmpty], Meta(min_length=1, max_length=MAX_TAGS)] | None = None
    format: Raw = NULL


_DECODER = msgspec.json.Decoder(StructuralTag)
_TEXT = msgspec.json.Decoder(str)
_SCHEMA = msgspec.json.Decoder(dict[str, object] | bool)


def tags_format(raw: Raw, param: str) -> TagsFormat | StructureFormat:
    """Raises InvalidRequest naming the place within `param`, NotSupportedYet for a kind of `format`."""
    text = bytes(raw).strip()
    if text.startswith(b'"'):
        text = decode_field(text, _TEXT, param).encode("utf-8", "surrogatepass")
    asked = decode_field(text, _DECODER, param)
    if not is_null(asked.format):
        if asked.structures is not None or asked.triggers is not None:
            raise InvalidRequest(f"{param} has structures or triggers beside format; give one form", param=param)
        return StructureFormat(structure_of(asked.format, f"{param}.format"))
    if asked.structures is None or asked.triggers is None:
        missing = "structures" if asked.structures is None else "triggers"
        raise InvalidRequest(f"{param}.{missing} is missing", param=f"{param}.{missing}")
    tags = []
    for index, structure in enumerate(asked.structures):
        place = f"{param}.structures[{index}]"
        decode_field(structure.schema, _SCHEMA, f"{place}.schema")
        if not structure.begin.startswith(tuple(asked.triggers)):
            raise InvalidRequest(f"{place}.begin starts with none of {param}.triggers", param=f"{place}.begin")
        tags.append(Tag(structure.begin, bytes(structure.schema).decode(), structure.end))
    return TagsFormat(tuple(tags), tuple(dict.fromkeys(asked.triggers)))
