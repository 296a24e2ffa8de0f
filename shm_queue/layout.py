"""Geometry of a board: what a process must know, beside the file descriptors, to attach to it."""

from __future__ import annotations

import msgspec


class BoardLayout(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One writer, `num_readers` lockstep readers, `num_slots` slots of `slot_bytes` bytes of payload each.

    The descriptors are named `<name>.memory`, `<name>.doorbell.<reader>` and `<name>.credit.<reader>`.
    """

    name: str
    epoch: int
    num_slots: int
    slot_bytes: int
    num_readers: int

    def reader_fd_names(self, reader: int) -> tuple[str, ...]:
        """Names of those that one reader uses."""
        return (f"{self.name}.memory", f"{self.name}.doorbell.{reader}", f"{self.name}.credit.{reader}")

    def fd_names(self) -> tuple[str, ...]:
        """Names of the board's descriptors, in the order in which they travel."""
        readers = range(self.num_readers)
        return (
            f"{self.name}.memory",
            *(f"{self.name}.doorbell.{i}" for i in readers),
            *(f"{self.name}.credit.{i}" for i in readers),
        )
