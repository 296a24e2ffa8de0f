"""The log-probabilities of sampled tokens in one result."""

from __future__ import annotations

import numpy as np

from ..errors import ProtocolViolation
from ..mailbox.messages.requests import TokenLogprobs
from ..mailbox.messages.steps import StepResult
from .request import Request


class ResultLogprobs:
    """By row of the result; decoded only if there are any."""

    def __init__(self, result: StepResult) -> None:
        """Raises ProtocolViolation if the arrays do not match."""
        rows = np.frombuffer(result.logprob_rows, dtype="<i4").tolist()
        self._index_of = {row: index for index, row in enumerate(rows)}
        if not rows:
            return
        self._sampled = np.frombuffer(result.logprobs, dtype="<f4").tolist()
        top_ids = np.frombuffer(result.top_ids, dtype="<i4")
        top_logprobs = np.frombuffer(result.top_logprobs, dtype="<f4")
        if len(self._sampled) != len(rows) or len(top_ids) % len(rows) or len(top_ids) != len(top_logprobs):
            raise ProtocolViolation(f"the log-probabilities of step {result.step} do not match its {len(rows)} rows")
        self._top_ids = top_ids.reshape(len(rows), -1)
        self._top_logprobs = top_logprobs.reshape(len(rows), -1)

    def of_row(self, row: int, token_id: int, request: Request) -> TokenLogprobs | None:
        """What the request asked for, or None. Raises ProtocolViolation if the result lacks it."""
        wanted = request.sampling.logprobs
        if wanted is None:
            return None
        index = self._index_of.get(row)
        if index is None or self._top_ids.shape[1] < wanted:
            raise ProtocolViolation(
                f"request {request.key} asked for {wanted} log-probabilities, the result lacks them"
            )
        return TokenLogprobs(
            token_id=token_id,
            logprob=self._sampled[index],
            top_ids=self._top_ids[index, :wanted].tolist(),
            top_logprobs=self._top_logprobs[index, :wanted].tolist(),
        )
