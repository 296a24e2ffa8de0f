"""What the stages of a model hand on: hidden states from each to the next, sampled tokens from the last to the first.

Each link is a board of its own, so that a stage goes on as soon as its record is written. A record begins with the
epoch and the step of its plan. When the last stage fails to sample it says so, and a stage that hears of it says so to
the next; no stage computes then what was launched behind that step, and records that nobody asks for are passed over.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import ProtocolViolation, SamplingFailed
from ..shm_queue import BoardReader, BoardWriter
from .input_batch import Int32s

PlanId = tuple[int, int]
"""(epoch, step)"""
_HEAD = struct.Struct("<qqq")
HEAD_BYTES = _HEAD.size
"""Before what is handed on: epoch, step, and whether there is anything."""
_IS_THERE, _IS_MISSING = 1, 0
_TIMEOUT_S = 3600.0
"""A reader has a slot for every step in flight. One that does not move is ended by the supervisor, sooner."""


class HiddenSender:
    """To the next stage."""

    def __init__(self, board: BoardWriter) -> None:
        self._board = board
        self.num_sent = 0
        """Transfers."""

    def send(self, plan_id: PlanId, hidden: Tensor) -> None:
        """hidden: [num_tokens, hidden_size] on the CPU."""
        self.num_sent += 1
        _publish(self._board, plan_id, _IS_THERE, hidden.contiguous().view(torch.uint8).numpy().tobytes())

    def send_nothing(self, plan_id: PlanId) -> None:
        """The step is not computed, for one before it could not be sampled in."""
        _publish(self._board, plan_id, _IS_MISSING, b"")


class HiddenReceiver:
    """From the stage before."""

    def __init__(self, board: BoardReader, hidden_size: int, dtype: torch.dtype) -> None:
        self._board, self._hidden_size, self._dtype = board, hidden_size, dtype

    def receive(self, plan_id: PlanId) -> Tensor:
        """Waits. Returns [num_tokens, hidden_size]; raises SamplingFailed if the stage before has not computed it."""
        payload = _receive(self._board, plan_id)
        return torch.frombuffer(payload, dtype=self._dtype).view(-1, self._hidden_size)


class TokenSender:
    """Of the rank that samples, to the ranks of the first stage."""

    def __init__(self, board: BoardWriter) -> None:
        self._board = board

    def send(self, plan_id: PlanId, token_ids: Int32s | None) -> None:
        """token_ids: int32 [k], what the step has sampled; None: that failed."""
        status, payload = (_IS_MISSING, b"") if token_ids is None else (_IS_THERE, token_ids.tobytes())
        _publish(self._board, plan_id, status, payload)


class TokenReceiver:
    """Of a rank of the first stage."""

    def __init__(self, board: BoardReader) -> None:
        self._board = board

    def receive(self, plan_id: PlanId) -> Int32s:
        """Waits. Returns int32 [k]; raises SamplingFailed if the step's sampling failed."""
        return np.frombuffer(_receive(self._board, plan_id), np.int32)


class StageLinks(NamedTuple):
    """A rank's ends."""

    receiver: HiddenReceiver | None
    """None: of the first stage."""
    sender: HiddenSender | None
    """None: of the last stage."""


def _publish(board: BoardWriter, plan_id: PlanId, status: int, payload: bytes) -> None:
    board.publish(_HEAD.pack(*plan_id, status) + payload, _TIMEOUT_S, lambda _: "computing")


def _receive(board: BoardReader, plan_id: PlanId) -> bytearray:
    while True:
        record = board.receive()
        epoch, step, status = _HEAD.unpack_from(record)
        if (epoch, step) == plan_id:
            if status == _IS_MISSING:
                raise SamplingFailed(f"the last stage failed to sample in step {step} or the one before")
            return bytearray(memoryview(record)[HEAD_BYTES:])
        if (epoch, step) > plan_id:
            raise ProtocolViolation(f"another stage is at step {step} of epoch {epoch}, this one at {plan_id}")
