"""The boards of the current epoch, as the supervisor holds them: every descriptor, for processes that die and come."""

from __future__ import annotations

import select

from ..mailbox.messages.control import Attach
from ..shm_queue import BoardLayout, close_board, create_board, seal_board
from ..topology import Topology, plan_boards


class EpochBoards:
    """Call board and result board; `renew` makes new ones and raises the epoch, the old memory goes with its users."""

    def __init__(self, topology: Topology, max_model_len: int) -> None:
        self._topology = topology
        self._max_model_len = max_model_len
        self.epoch = 0
        self.layouts: tuple[BoardLayout, ...] = ()
        self.fds: dict[str, int] = {}

    def renew(self) -> None:
        """Raises NotEnoughMemory, OSError."""
        self.close()
        self.epoch += 1
        self.layouts = plan_boards(self._topology, self._max_model_len, self.epoch)
        for layout in self.layouts:
            self.fds.update(create_board(layout))

    def seal_call_board(self) -> None:
        """The scheduler died: all ranks run the same last step, then find the end of the board."""
        seal_board(self.layouts[0], self.fds)

    def attach_message(self) -> tuple[Attach, list[int]]:
        """For a process that is to use these boards, with the descriptors that travel beside it."""
        return Attach(self.layouts, tuple(self.fds)), list(self.fds.values())

    def has_unread_plan(self, rank: int) -> bool:
        """A plan was published that the rank has not taken; only looked at."""
        fd = self.fds.get(f"{self.layouts[0].name}.doorbell.{rank}") if self.layouts else None
        if fd is None:
            return False
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        close_board(self.fds)
        self.fds = {}
