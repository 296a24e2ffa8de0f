"""How long what a client writes may be, before anything else is done with it."""

from __future__ import annotations

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import (
    ChoiceFormat,
    GrammarFormat,
    JsonFormat,
    OutputFormat,
    RegexFormat,
    TagsFormat,
)


def ensure_size(form: OutputFormat, max_bytes: int) -> None:
    """Raises GrammarRefused if all that describes the form takes more than `max_bytes` (`max_schema_bytes`)."""
    match form:
        case JsonFormat(text) | RegexFormat(text) | GrammarFormat(text):
            texts = [text]
        case ChoiceFormat(choices):
            texts = list(choices)
        case TagsFormat(tags):
            texts = [text for tag in tags for text in (tag.begin, tag.schema, tag.end)]
    num_bytes = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    if num_bytes > max_bytes:
        raise GrammarRefused(
            f"what describes the answer has {num_bytes:,} bytes, the limit is {max_bytes:,} (max_schema_bytes)"
        )
