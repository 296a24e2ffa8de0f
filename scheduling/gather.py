"""The log-probabilities of prompts in a result, handed to the requests that gather them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..errors import ProtocolViolation
from ..mailbox.messages.steps import PromptLogprobs
from .prompt_logprobs import Piece
from .request import Request


def gather_prompt_logprobs(running: Mapping[int, Request], step: int, found: PromptLogprobs) -> None:
    """Add each piece to its request, cut to what it asked for; pieces of runs that are over are dropped.

    `running`: by run. Raises ProtocolViolation if the arrays do not match, or a piece is not the next one of a request
    that gathers any.
    """
    runs = np.frombuffer(found.runs, "<i8").tolist()
    starts = np.frombuffer(found.starts, "<i4").tolist()
    counts = np.frombuffer(found.counts, "<i4").tolist()
    logprobs, top_logprobs = np.frombuffer(found.logprobs, "<f4"), np.frombuffer(found.top_logprobs, "<f4")
    ranks, top_ids = np.frombuffer(found.ranks, "<i4"), np.frombuffer(found.top_ids, "<i4")
    num_tokens = len(logprobs)
    does_match = len(runs) == len(starts) == len(counts) and min(counts, default=0) >= 0
    does_match = does_match and sum(counts) == num_tokens == len(ranks)
    if not does_match or len(top_ids) != len(top_logprobs) or len(top_ids) % max(1, num_tokens):
        raise ProtocolViolation(f"the prompt log-probabilities of step {step} do not match its {len(runs)} pieces")
    top_ids, top_logprobs = (top.reshape(num_tokens, len(top) // max(1, num_tokens)) for top in (top_ids, top_logprobs))
    at = 0
    for run, start, count in zip(runs, starts, counts, strict=True):
        request = running.get(run)
        part = slice(at, at + count)
        at += count
        if request is None:
            continue
        width = _width(request, start, count, top_ids.shape[1])
        tops = top_ids[part, :width].copy(), top_logprobs[part, :width].copy()
        gathered = request.prompt_logprobs
        assert gathered is not None
        gathered.add(Piece(logprobs[part].copy(), ranks[part].copy(), *tops))


def _width(request: Request, start: int, count: int, num_top: int) -> int:
    """Alternatives that the request asked for. Raises ProtocolViolation if a piece does not fit it."""
    gathered, wanted = request.prompt_logprobs, request.sampling.prompt_logprobs
    if gathered is None or wanted is None:
        raise ProtocolViolation(f"request {request.key} gathers no prompt log-probabilities, the result has some")
    if start != gathered.num_known + 1 or start + count > request.num_prompt_tokens:
        raise ProtocolViolation(
            f"request {request.key} got prompt log-probabilities of positions {start} to {start + count - 1}, "
            f"{gathered.num_known + 1} is next and {request.num_prompt_tokens - 1} is the last"
        )
    if count and num_top < wanted:
        raise ProtocolViolation(f"request {request.key} asked for {wanted} prompt log-probabilities, it got {num_top}")
    return wanted
