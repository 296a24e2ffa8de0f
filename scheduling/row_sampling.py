"""What a worker is told of a request's sampling parameters."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..mailbox.messages.sampling import SamplingParams


def row_sampling_of(sampling: SamplingParams, eos_token_ids: Sequence[int]) -> SamplingParams:
    """The parameters as a `NewRow` carries them. Pure.

    Texts are the tokenizer's business and have no bound, repetition is the scheduler's. `stop_token_ids` are all the
    tokens that may not be sampled before `min_tokens`, EOS among them unless it is ignored.
    """
    never_early: dict[int, None] = {}
    if sampling.min_tokens > 0:
        never_early = dict.fromkeys((*(() if sampling.ignore_eos else eos_token_ids), *sampling.stop_token_ids))
    return msgspec.structs.replace(
        sampling, stop=(), bad_words=(), repetition_detection=None, stop_token_ids=tuple(never_early)
    )
