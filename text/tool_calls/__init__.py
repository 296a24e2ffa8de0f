"""Tool calls in the text of an answer: one incremental parser for all families of models.

    family = FAMILIES[detect_family(template) or DEFAULT_FAMILY.name]
    parser = ToolCallParser(family, [Tool("f", b'{"type": "object", ...}')], call_ids(family, f"{request_id}-{choice}"))
    for piece in answer:
        deltas = parser.feed(piece)     # list of Content | CallBegun | ArgumentsPiece, often empty
    deltas = parser.finish()            # the rest; then parser.num_calls is final

One parser per choice. The answer without streaming is the stream fed at once: for every cut of a text the joined
content, the names, ids and joined arguments are the same. `finish_reason` is "tool_calls" if `num_calls` > 0 and the
answer came to its own end.

- **What comes first?** The reasoning: give a `ReasoningParser`'s content to this parser, not its reasoning. `harmony`
  needs both.
- **Markers.** `family.markers` are tokens of their own, some of them special: decode the answer with these kept. They
  must not be stop strings, and a token that ends the answer may be missing (`<|call|>`).
- **Arguments** come out while they are written and as the model wrote them, unchecked: validate with a grammar, or
  expect what models do. Nothing but an object is held back: null and "" become `{}`, a string that holds an object
  becomes that object. Parameters of the XML families come out one by one, strings while they are written; values are
  typed by the tool's schema, and what does not fit its type is a string.
- **An unknown name** (one that is not among `tools`) is no call: its text is content, as written. So is what only looks
  like a call, and a head of a call that is cut off before its name is complete.
- **A call that is cut off or malformed** behind its head stays, with the arguments that had come. Nothing is raised.
- **White space** next to a call (up to 64 characters) is no content.
- **Held back** is only what may become a call's head (under 1,000 characters). A JSON object whose first member is not
  its name is held back as a whole.
- **More than one call** with `is_parallel=False`: the first is given out, the others are dropped.

`tool_tags` says how the same calls are written, for a grammar: `prefix`, tags with `separator` between them, `suffix`.
"""

from .call_ids import call_ids
from .deltas import ArgumentsPiece, CallBegun, Content, Delta
from .families import DEFAULT_FAMILY, FAMILIES, detect_family
from .form import Family
from .parser import MakeId, ToolCallParser
from .tags import ParameterMarks, ToolTag, ToolTags, tool_tags
from .tools import NO_PARAMETERS, Tool

__all__ = [
    "DEFAULT_FAMILY",
    "FAMILIES",
    "NO_PARAMETERS",
    "ArgumentsPiece",
    "CallBegun",
    "Content",
    "Delta",
    "Family",
    "MakeId",
    "ParameterMarks",
    "Tool",
    "ToolCallParser",
    "ToolTag",
    "ToolTags",
    "call_ids",
    "detect_family",
    "tool_tags",
]
