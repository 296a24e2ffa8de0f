"""When a request ends: the test after each token."""

from __future__ import annotations

from .request import Request, RequestState


def stop_state(request: Request) -> RequestState | None:
    """The state in which the last known token ends `request`, or None: it goes on. Pure.

    The order decides which reason is told when several hold: EOS (unless `ignore_eos`), then length (`max_tokens`,
    the model's length, the pool's). A `min_tokens` guard belongs in front of them, `stop_token_ids` between them,
    repetition behind.
    """
    if request.token_ids[-1] in request.stop_ids:
        return RequestState.STOPPED
    if request.num_tokens >= request.max_total_tokens:
        return RequestState.LENGTH_CAPPED
    return None
