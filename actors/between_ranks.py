"""What the supervisor makes for the ranks of a worker to hand each other tensors, as long as they live."""

from __future__ import annotations

import os

from ..checkpoints.shape import ModelShape
from ..shm_queue import close_board, create_board
from ..shm_queue.rank_region import RankRegionLayout, create_rank_region
from ..topology import Topology, rank_region_layout, stage_boards
from ..topology.boards import stage_boards_of
from ..topology.plan import worker_process


class BetweenRanks:
    """A region for each stage of several ranks, and boards between stages; nothing for a worker of one rank."""

    def __init__(self, topology: Topology, shape: ModelShape) -> None:
        self._section = worker_process(topology)
        self.region: RankRegionLayout | None = None
        if self._section.tensor_parallel > 1:
            self.region = rank_region_layout(topology, shape)
        self.boards = stage_boards(topology, shape)
        self._region_fds: list[int] = []
        """By stage."""
        self._board_fds: dict[str, int] = {}

    def renew(self) -> None:
        """For ranks that begin: what others have left there is of no use. Raises NotEnoughMemory, OSError."""
        self.close()
        if self.region is not None:
            self._region_fds += [create_rank_region(self.region) for _ in range(self._section.pipeline_parallel)]
        for layout in self.boards:
            self._board_fds.update(create_board(layout))

    def fds_of_rank(self, rank: int) -> dict[str, int]:
        """By name."""
        fds: dict[str, int] = {}
        if self.region is not None:
            fds["ranks"] = self._region_fds[rank // self._section.tensor_parallel]
        if self.boards:
            own = stage_boards_of(self.boards, self._section, rank)
            for layout in (own.hidden_in, own.hidden_out, own.tokens_in, own.tokens_out):
                if layout is not None:
                    fds |= {name: self._board_fds[name] for name in layout.fd_names()}
        return fds

    def close(self) -> None:
        """Ranks keep what they have."""
        for fd in self._region_fds:
            os.close(fd)
        self._region_fds.clear()
        close_board(self._board_fds)
        self._board_fds = {}
