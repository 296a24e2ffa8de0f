"""The log-probabilities of one prompt, put together from the pieces that its chunks yield."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..mailbox.messages.requests import TokenLogprobs


class Piece(NamedTuple):
    """Of m neighbouring positions; `width` alternatives each, which is what the request asked for."""

    logprobs: npt.NDArray[np.float32]
    """[m]"""
    ranks: npt.NDArray[np.int32]
    """[m]"""
    top_ids: npt.NDArray[np.int32]
    """[m, width]"""
    top_logprobs: npt.NDArray[np.float32]
    """[m, width]"""


class GatheredLogprobs:
    """What is known of a prompt, from position 1 on without a gap. It stays arrays until it is sent."""

    def __init__(self) -> None:
        self.num_known = 0
        """Positions; the first one of the prompt has no log-probability and does not count."""
        self._pieces: list[Piece] = []

    @property
    def num_values(self) -> int:
        """Numbers in all entries."""
        return sum(3 * len(piece.logprobs) + 2 * piece.top_ids.size for piece in self._pieces)

    def add(self, piece: Piece) -> None:
        """The next positions."""
        self._pieces.append(piece)
        self.num_known += len(piece.logprobs)

    def entries(self, prompt_token_ids: Sequence[int]) -> list[TokenLogprobs]:
        """One for each known position of the prompt."""
        entries: list[TokenLogprobs] = []
        for piece in self._pieces:
            rows = zip(*(array.tolist() for array in piece), strict=True)
            for logprob, rank, top_ids, top_logprobs in rows:
                token_id = prompt_token_ids[len(entries) + 1]
                entries.append(TokenLogprobs(token_id, logprob, top_ids, top_logprobs, rank))
        return entries
