"""Choice of a victim when KV blocks run out: last in, first out."""

from __future__ import annotations

from collections.abc import Sequence

from .policy_views import VictimView
from .request import Request


def choose_victim(running: Sequence[Request], _view: VictimView) -> Request:
    """The last in plan order: the one admitted last, or the least urgent under an order that sorts the running."""
    return running[-1]
