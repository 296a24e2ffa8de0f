"""A validated request of either endpoint: what the engine is asked, and how the answer is to be written."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..mailbox.messages.requests import Prompt
from ..mailbox.messages.sampling import SamplingParams


class GenerationRequest(msgspec.Struct, frozen=True):
    """Everything about the request is decided: nothing below looks at the JSON again."""

    endpoint: Literal["chat", "completion"]
    prompt: Prompt
    sampling: SamplingParams
    num_choices: int
    cache_salt: str
    returns_token_ids: bool
    streams: bool
    includes_usage: bool
    """A stream ends with a usage chunk."""
    ignored_fields: list[str]
