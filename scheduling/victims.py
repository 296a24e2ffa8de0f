"""Who may have to go when KV blocks run out, for the policies that weigh the running against one another."""

from __future__ import annotations

from collections.abc import Sequence

from .request import Request


def candidates(running: Sequence[Request]) -> Sequence[Request]:
    """The least urgent of all but the first in plan order; the first only if it is alone.

    The first always gets on, so the engine as a whole does. A more urgent request (lower priority number) never goes
    while a less urgent one behind the first could: what was saved would be paid by the one that was to be spared.
    """
    if len(running) == 1:
        return running
    behind = running[1:]
    least_urgent = max(request.rank[0] for request in behind)
    return [request for request in behind if request.rank[0] == least_urgent]
