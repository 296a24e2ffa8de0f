"""What `tool_call_parser = "auto"` and `reasoning_parser = "auto"` become: what the chat template speaks of."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..checkpoints import Checkpoint, read_chat_template
from ..text.reasoning import detect_reasoning
from ..text.tool_calls import detect_family
from ..topology import Topology


def resolve_parsers(topology: Topology, checkpoint: Checkpoint) -> Topology:
    """The topology with both parsers named, where the template has signs of one. Raises ConfigError and its kinds for a
    model whose files cannot be read."""
    model = topology.model
    if "auto" not in (model.tool_call_parser, model.reasoning_parser):
        return topology
    template = _template(model.chat_template, checkpoint)
    named = {}
    if model.tool_call_parser == "auto":
        named["tool_call_parser"] = detect_family(template) or "auto"
    if model.reasoning_parser == "auto":
        named["reasoning_parser"] = detect_reasoning(template) or "none"
    return msgspec.structs.replace(topology, model=msgspec.structs.replace(model, **named))


def _template(path: str | None, checkpoint: Checkpoint) -> str:
    if path is None:
        return read_chat_template(checkpoint) or ""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""  # whoever checks the topology, or loads the tokenizer, tells
