"""The running rows that draw under a grammar, and what its actor has been told of them."""

from __future__ import annotations

from ..mailbox.messages.grammar import Advance
from .request import Request

_NOTHING = -1
"""Told of a run that is new."""


class ConstrainedRows:
    """It changes no plan: the masks come to the worker by themselves. So it stands in no snapshot, and a scheduler that
    goes on from one tells all of its runs anew."""

    def __init__(self) -> None:
        self._num_told: dict[int, int] = {}
        """Run -> known tokens, prompt included, that were told."""
        self._requests: dict[int, Request] = {}
        self._drafts: dict[int, list[int]] = {}
        """Run -> what its worker guesses to come behind the known tokens."""
        self._ended: list[int] = []

    def __len__(self) -> int:
        return len(self._requests)

    def enter(self, request: Request) -> None:
        """It has taken a row."""
        if request.grammar_key:
            assert request.run is not None
            self._requests[request.run] = request
            self._num_told[request.run] = _NOTHING

    def leave(self, request: Request) -> None:
        """It still has its run, and will give it up."""
        if request.grammar_key:
            assert request.run is not None
            del self._requests[request.run]
            self._drafts.pop(request.run, None)
            if self._num_told.pop(request.run) != _NOTHING:
                self._ended.append(request.run)

    def forget_ended(self) -> None:
        """The grammar actor is gone, with all that it was told."""
        self._ended = []

    def note_drafts(self, drafts: dict[int, list[int]]) -> None:
        """By run: what the worker guesses to come behind the tokens of the result that is being applied. What it said
        with an earlier one is out of date."""
        self._drafts = {run: token_ids for run, token_ids in drafts.items() if run in self._requests}

    def take_news(self, epoch: int) -> Advance | None:
        """What became known since the last call; None: nothing."""
        if not self._requests and not self._ended:
            return None
        told = Advance(epoch, [], [], [], [], ended=self._ended)
        for run, request in self._requests.items():
            num_told, num_tokens = self._num_told[run], request.num_tokens
            if num_told == num_tokens:
                continue
            if num_told == _NOTHING:
                num_told = request.num_prompt_tokens
                told.grammar_keys[run] = request.grammar_key
            assert request.row is not None
            told.rows.append(request.row)
            told.runs.append(run)
            told.positions.append(num_told)
            told.token_ids.append(request.token_ids[num_told:].tolist())
            self._num_told[run] = num_tokens
            if run in self._drafts:
                told.drafts[run] = self._drafts.pop(run)
        self._ended = []
        return told if told.runs or told.ended else None
