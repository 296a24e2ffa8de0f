"""A client with the rules of a receiver, which checks everything that is sent to it."""

from __future__ import annotations

from callboard.mailbox.messages.admission import Admit, TokenDeltas
from callboard.mailbox.messages.requests import Finish
from callboard.tests.scheduling.fake_model import VOCAB, prompt_entries


class Client:
    """What one choice of one request has received; the delivery rules of a receiver, and its checks."""

    def __init__(self, admit: Admit) -> None:
        self.admit = admit
        self.attempt = admit.attempt
        self.tokenizer = admit.tokenizer
        self.is_orphan = False
        """Its tokenizer or scheduler is gone, and it has not resumed."""
        self.token_ids: list[int] = []
        self.finish: Finish | None = None
        self.pauses: list[Finish] = []
        """Ends of turns of a session."""
        self.is_ended_here = False
        """It stopped or aborted the request itself, or was refused."""

    @property
    def is_live(self) -> bool:
        return self.finish is None and not self.is_ended_here

    def receive(self, message: TokenDeltas, row: int) -> None:
        if message.attempts[row] != self.attempt:
            return
        assert not self.is_orphan, "tokens for a dead tokenizer"
        if self.is_ended_here:  # the end crossed the request's own, which had not been sent
            assert row in message.finishes, "tokens after the client's own end"
            return
        assert self.finish is None, "something comes after the end"
        position, new = message.positions[row], message.token_ids[row]
        assert position <= len(self.token_ids), "a gap"
        assert self.token_ids[position : position + len(new)] == new[: len(self.token_ids) - position]
        self.token_ids = self.token_ids[:position] + new
        self.finish = message.finishes.get(row)
        pause = message.pauses.get(row)
        if pause is not None:
            self.pauses.append(pause)
        assert new or pause or self.finish is not None, "an empty delta"
        self._check_prompt_logprobs(message, row, position == 0 and bool(new))
        wanted = self.admit.sampling.logprobs
        assert (row in message.logprobs) == (wanted is not None and bool(new))
        for token_id, entry in zip(new, message.logprobs.get(row, ()), strict=wanted is not None):
            assert (entry.token_id, entry.logprob) == (token_id, -token_id / 4)
            assert entry.top_ids == [(token_id + rank) % VOCAB for rank in range(wanted or 0)]
            assert entry.top_logprobs == [-top / 4 for top in entry.top_ids]

    def _check_prompt_logprobs(self, message: TokenDeltas, row: int, is_first: bool) -> None:
        """They come with the first token of an attempt, and at no other time."""
        wanted = self.admit.sampling.prompt_logprobs
        assert (row in message.prompt_logprobs) == (is_first and wanted is not None)
        if is_first and wanted is not None:
            assert message.prompt_logprobs[row] == prompt_entries(list(self.admit.prompt_token_ids), wanted)
            assert message.cached_tokens[row] == 0
