"""Choice of a victim when KV blocks run out: the one that has written least.

The rule by which SGLang retracts requests from its running batch: fewest output tokens first, of equals the longest
prompt. A reader who is far into an answer is not interrupted, and the longest prompt of those makes the most room. It
goes with `estimate` admission, which learns from each retract.
"""

from __future__ import annotations

from collections.abc import Sequence

from .policy_views import VictimView
from .request import Request
from .victims import candidates


def choose_victim(running: Sequence[Request], _view: VictimView) -> Request:
    """The fewest output tokens (of a session's turn), then the longest prompt, then the last in plan order."""
    return min(reversed(candidates(running)), key=_claim)


def _claim(request: Request) -> tuple[int, int]:
    return (request.num_output_tokens, -request.num_prompt_tokens)
