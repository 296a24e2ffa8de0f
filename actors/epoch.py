"""The boards of the current epoch, as the supervisor holds them: every descriptor, for processes that die and come."""

from __future__ import annotations

import select

from ..mailbox.messages.control import Attach
from ..shm_queue import BoardLayout, close_board, create_board, seal_board
from ..topology import Topology, plan_boards
from ..topology.plan import output_rank_of, worker_process


class EpochBoards:
    """Call board and result board; `renew` makes new ones and raises the epoch, the old memory goes with its users."""

    def __init__(self, topology: Topology, max_model_len: int) -> None:
        self._topology = topology
        self._max_model_len = max_model_len
        self._output_rank = output_rank_of(worker_process(topology))
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

    def fds_of_rank(self, rank: int) -> dict[str, int]:
        """Of a rank's own ends: one alone writes results."""
        call, result = self.layouts
        names = (*call.reader_fd_names(rank), *(result.fd_names() if rank == self._output_rank else ()))
        return {name: self.fds[name] for name in names}

    def attach_message(self, rank: int | None = None) -> tuple[Attach, list[int]]:
        """For the scheduler, or a rank of its worker, with the descriptors that travel beside it."""
        fds = self.fds if rank is None else self.fds_of_rank(rank)
        return Attach(self.layouts, tuple(fds)), list(fds.values())

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
