"""Finding the request that makes steps fail or workers die: suspects run in small groups, everybody else waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, KeysView, Sequence

from .request import RequestKey


class Trial:
    """A queue of groups of suspects. Only members of the first group run, at pipeline depth 1, until it is cleared.

    A member leaves its group with its first token, or when it ends; a group that nobody is left in is cleared. When a
    step of a group fails, those that stood in it are tried in halves; one that was alone in it is the culprit, and
    that closes the trial: bisected once, and whoever is left is taken for innocent. With n suspects and one culprit
    at most 2 log2(n) groups run, and log2(n) steps fail.
    """

    def __init__(self) -> None:
        self._groups: deque[dict[RequestKey, None]] = deque()

    @property
    def is_active(self) -> bool:
        """There is a group to try."""
        return bool(self._groups)

    @property
    def group(self) -> KeysView[RequestKey]:
        """Who may run, first suspect first; only while the trial is active."""
        return self._groups[0].keys()

    def groups(self) -> Iterator[list[RequestKey]]:
        """All groups, the one that runs first."""
        return (list(group) for group in self._groups)

    def split(self, keys: Sequence[RequestKey]) -> None:
        """A step with these requests failed: try them in halves, before all others."""
        middle = (len(keys) + 1) // 2
        self._try_first([keys[:middle], keys[middle:]])

    def isolate(self, keys: Sequence[RequestKey]) -> None:
        """Each of these requests may be the culprit: try them one by one, before all others."""
        self._try_first([[key] for key in keys])

    def acquit(self, key: RequestKey) -> None:
        """The request yielded a token, or it ended."""
        for group in self._groups:
            group.pop(key, None)
        self._drop_empty()

    def close(self) -> None:
        """The culprit is found."""
        self._groups.clear()

    def _try_first(self, groups: Sequence[Sequence[RequestKey]]) -> None:
        moved = {key for group in groups for key in group}
        rest = [{key: None for key in group if key not in moved} for group in self._groups]
        self._groups = deque([*(dict.fromkeys(group) for group in groups), *rest])
        self._drop_empty()

    def _drop_empty(self) -> None:
        if not all(self._groups):
            self._groups = deque(group for group in self._groups if group)
