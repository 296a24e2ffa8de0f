"""When a request ends: the test after each token."""

from __future__ import annotations

from typing import NamedTuple

from .repetition import ends_in_repetition
from .request import Request, RequestState


class Ending(NamedTuple):
    """How the last known token ends a request. `stop_reason`: the id of `stop_token_ids` that did it, if one did."""

    state: RequestState
    stop_reason: int | None = None


def ending_of(request: Request) -> Ending | None:
    """What the last known output token means for `request`; None: it goes on. Pure.

    The order decides which reason is told when several hold: EOS (unless `ignore_eos`), `stop_token_ids`, length
    (`max_tokens`, the model's length, the pool's), repetition. Before `min_tokens` output tokens of a turn, those
    of earlier attempts counted, only the length ends it: there is no place for one token more.
    """
    min_tokens, last = request.sampling.min_tokens, request.token_ids[-1]
    is_guarded = min_tokens > 0 and request.num_output_tokens < min_tokens
    if last in request.eos_token_ids and not is_guarded:
        return Ending(RequestState.STOPPED)
    if last in request.stop_token_ids and not is_guarded:
        return Ending(RequestState.STOPPED, last)
    if request.num_tokens >= request.max_total_tokens:
        return Ending(RequestState.LENGTH_CAPPED)
    detection = request.sampling.repetition_detection
    if detection is None or is_guarded:
        return None
    is_repeating = ends_in_repetition(request.token_ids, request.num_prompt_tokens, detection)
    return Ending(RequestState.REPETITION) if is_repeating else None
