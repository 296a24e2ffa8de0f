"""How long work on model files is shown: a protocol, so that this floor knows no terminal."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """One bar at a time: `start`, any number of `advance`, `finish`. Called from one thread."""

    def start(self, what: str, total_bytes: int | None) -> None:
        """Begin to show `what`; `total_bytes` is None while the size is not known."""
        ...

    def advance(self, num_bytes: int) -> None:
        """`num_bytes` more are done."""
        ...

    def finish(self) -> None:
        """The work begun by the last `start` ended, well or not."""
        ...


class NoProgress:
    """Shows nothing."""

    def start(self, what: str, total_bytes: int | None) -> None:
        """Nothing."""

    def advance(self, num_bytes: int) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""
