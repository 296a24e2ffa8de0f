"""How long what a client writes may be, before anything else is done with it."""

from __future__ import annotations

from typing import assert_never

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import (
    ChoiceFormat,
    ContentOrCalls,
    GrammarFormat,
    JsonFormat,
    OutputFormat,
    RegexFormat,
    StructureFormat,
    TagsFormat,
)
from ..mailbox.messages.structures import texts_of

_BASE_BYTES, _BYTES_A_BYTE = 65_536, 64
"""Of a grammar by llguidance whose first mask was made: 40 to 50 bytes of memory for each of a large schema's, measured
with 4 schemas of 120 kB; of small ones up to 160 kB in all."""


def compiled_bytes(form: OutputFormat) -> int:
    """About how much memory its grammar takes."""
    return _BASE_BYTES + _BYTES_A_BYTE * _num_bytes(form)


def ensure_size(form: OutputFormat, max_bytes: int) -> None:
    """Raises GrammarRefused if all that describes the form takes more than `max_bytes` (`max_schema_bytes`)."""
    num_bytes = _num_bytes(form)
    if num_bytes > max_bytes:
        raise GrammarRefused(
            f"what describes the answer has {num_bytes:,} bytes, the limit is {max_bytes:,} (max_schema_bytes)"
        )


def _num_bytes(form: OutputFormat) -> int:
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in _texts(form))


def _texts(form: OutputFormat) -> list[str]:
    """All that the client wrote of it."""
    match form:
        case JsonFormat(text) | RegexFormat(text) | GrammarFormat(text):
            return [text]
        case ChoiceFormat(choices):
            return list(choices)
        case TagsFormat(tags):
            return [text for tag in tags for text in (tag.begin, tag.schema, tag.end)]
        case StructureFormat(root):
            return texts_of(root)
        case ContentOrCalls(content, calls):
            return _texts(content) + _texts(calls)
        case _:
            assert_never(form)
