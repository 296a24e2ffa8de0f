"""What a journal needs of a scheduler to begin a file in the middle of its life."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class TakesSnapshots(Protocol):
    """A scheduler whose whole state can be written down."""

    def snapshot(self) -> bytes: ...
