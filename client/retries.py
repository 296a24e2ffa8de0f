"""Which failures of a call are tried again, and after how long. Only those after which the server has not begun."""

from __future__ import annotations

import random
from collections.abc import Mapping

import msgspec

MAX_PAUSE_S = 60.0
"""A server that asks for more is not waited for: the caller gets its error, with `retry_after_s`."""
_MAX_BACKOFF_S = 8.0


class Retries(msgspec.Struct, frozen=True):
    """`max_retries` repetitions of a call at most; `backoff_s` before the first, doubled for each further one."""

    max_retries: int = 0
    backoff_s: float = 0.5

    def pause_s(self, attempt: int, answer: tuple[int, Mapping[str, str], int | None] | None) -> float | None:
        """How long to wait before a call that has failed `attempt` + 1 times is made again; None: it is not.

        `answer`: None if no connection was made, so that nothing was sent; else status, headers and the seconds of
        Retry-After. Of the statuses only 429 and 503 say that the request was not begun.
        """
        if attempt >= self.max_retries:
            return None
        backoff_s: float = min(_MAX_BACKOFF_S, self.backoff_s * 2.0**attempt)
        jitter_s = backoff_s * random.uniform(0.5, 1.0)
        if answer is None:
            return jitter_s
        status, headers, retry_after_s = answer
        if status not in (429, 503) or headers.get("x-should-retry") == "false":
            return None
        if retry_after_s is None:
            return jitter_s
        if retry_after_s > MAX_PAUSE_S:
            return None
        return retry_after_s + jitter_s / 2  # those who were told the same do not come at the same time
