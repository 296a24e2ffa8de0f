"""The rows of the fake worker's batch, and what they yield."""

from __future__ import annotations

import random

import numpy as np

from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.requests import TokenLogprobs
from callboard.mailbox.messages.steps import NewRow, PromptLogprobs, StepPlan, StepResult
from callboard.tests.scheduling.fake_model import VOCAB, next_token, prompt_entries


def ints(data: bytes) -> list[int]:
    """Values of an int32 array."""
    return np.frombuffer(data, "<i4").tolist()


def drafts_of(plan: StepPlan) -> list[list[int]]:
    """The drafts of each row of a plan."""
    counts = ints(plan.num_drafts) or [0] * (len(plan.rows) // 4)
    ids = ints(plan.draft_ids)
    assert sum(counts) == len(ids) and len(counts) == len(plan.rows) // 4
    return [ids[sum(counts[:index]) : sum(counts[: index + 1])] for index in range(len(counts))]


def guesses_of(plan: StepPlan) -> list[tuple[int, int]]:
    """Of each row of a plan how many drafts the worker may guess, and before which position; (-1, 0): none."""
    ends = ints(plan.draft_ends) or [0] * (len(plan.rows) // 4)
    most = ints(plan.max_drafts) or [-1] * len(ends)
    assert all((count >= 0) == (end > 0) for count, end in zip(most, ends, strict=True))
    return list(zip(most, ends, strict=True))


def sampled_of(result: StepResult) -> list[tuple[int, list[int]]]:
    """Each run of a result, and its tokens."""
    runs, token_ids = np.frombuffer(result.runs, "<i8").tolist(), ints(result.token_ids)
    counts = ints(result.num_sampled) or [1] * len(runs)
    assert len(runs) == len(counts) and sum(counts) == len(token_ids)
    return [(run, token_ids[sum(counts[:i]) : sum(counts[: i + 1])]) for i, run in enumerate(runs)]


class Row:
    """A row of the persistent batch, and what was admitted for it."""

    def __init__(self, new: NewRow, admit: Admit) -> None:
        self.run, self.choice, self.sampling, self.admit = new.run, new.choice, new.sampling, admit
        self.row = new.row
        self.is_late = False
        """It had no mask when it was to sample last, so its next positions may be of tokens that nobody knows."""
        self.num_prompt_tokens = new.num_prompt_tokens
        self.token_ids, self.block_ids = ints(new.token_ids), ints(new.block_ids)

    @property
    def forbidden(self) -> tuple[int, ...]:
        """Tokens that may not be sampled next."""
        is_early = len(self.token_ids) - self.num_prompt_tokens < self.sampling.min_tokens
        return self.sampling.stop_token_ids if is_early else ()

    def guess(self) -> list[int]:
        """Drafts of the worker's own: more or less right, and the same whenever the row stands here."""
        chance = random.Random(f"{self.run} {len(self.token_ids)}")
        known = list(self.token_ids)
        for _ in range(chance.randrange(5)):
            known.append(next_token(known, self.choice))
        return known[len(self.token_ids) :] + [1] * chance.randrange(3)

    def sample(self, drafts: list[int]) -> list[int]:
        """The model's own tokens: drafts are accepted while they equal them, and one more comes behind."""
        sampled: list[int] = []
        for draft in (*drafts, None):
            sampled.append(next_token(self.token_ids, self.choice, self.forbidden))
            self.token_ids.append(sampled[-1])
            if sampled[-1] != draft:
                break
        return sampled


class Results:
    """The arrays of a result, row by row."""

    def __init__(self) -> None:
        self._runs: list[int] = []
        self._positions: list[int] = []
        self._tokens: list[list[int]] = []
        self._drafted: list[int] = []
        self._wanted: list[tuple[int, int]] = []

    def add(
        self, run: int, position: int, token_ids: list[int], num_logprobs: int | None, num_drafted: int = 0
    ) -> None:
        """A row's tokens, the first of them at `position`, and how many drafts were verified for them."""
        if num_logprobs is not None:
            first = sum(map(len, self._tokens))
            self._wanted += [(first + index, num_logprobs) for index in range(len(token_ids))]
        self._runs.append(run)
        self._positions.append(position)
        self._tokens.append(token_ids)
        self._drafted.append(num_drafted)

    def build(self, plan: StepPlan, now_ns: int, prompt_logprobs: PromptLogprobs | None) -> StepResult:
        width = max((count for _, count in self._wanted), default=0)
        token_ids = [token_id for row in self._tokens for token_id in row]
        counts = np.array([len(row) for row in self._tokens], "<i4")
        sampled = [token_ids[index] for index, _ in self._wanted]
        top = [[(token_id + rank) % VOCAB for rank in range(width)] for token_id in sampled]
        return StepResult(
            epoch=plan.epoch,
            step=plan.step,
            runs=np.array(self._runs, "<i8").tobytes(),
            positions=np.array(self._positions, "<i4").tobytes(),
            token_ids=np.array(token_ids, "<i4").tobytes(),
            start_ns=now_ns,
            end_ns=now_ns,
            logprob_rows=np.array([index for index, _ in self._wanted], "<i4").tobytes(),
            logprobs=np.array([-token_id / 4 for token_id in sampled], "<f4").tobytes(),
            top_ids=np.array(top, "<i4").tobytes(),
            top_logprobs=(np.array(top, "<f4") / -4).tobytes(),
            prompt_logprobs=prompt_logprobs,
            num_sampled=counts.tobytes() if plan.num_drafts or plan.max_drafts or not counts.all() else b"",
            num_drafted=np.array(self._drafted, "<i4").tobytes() if plan.max_drafts else b"",
        )


def describe_prompts(rows: list[tuple[Row, int, int, int]]) -> PromptLogprobs | None:
    """What the positions computed say of the prompt tokens behind them; of each row its run, first position, and how
    many positions."""
    pieces: list[tuple[int, int, list[TokenLogprobs]]] = []
    asking = [row.sampling.prompt_logprobs for row, *_ in rows]
    width = max((wanted for wanted in asking if wanted is not None), default=0)
    for (row, run, start, count), wanted in zip(rows, asking, strict=True):
        end = min(start + count, row.num_prompt_tokens - 1)
        if wanted is not None and start < end:
            entries = prompt_entries(row.token_ids[: row.num_prompt_tokens], width)
            pieces.append((run, start + 1, entries[start:end]))
    if not pieces:
        return None
    entries = [entry for _, _, piece in pieces for entry in piece]
    return PromptLogprobs(
        runs=np.array([run for run, _, _ in pieces], "<i8").tobytes(),
        starts=np.array([start for _, start, _ in pieces], "<i4").tobytes(),
        counts=np.array([len(piece) for _, _, piece in pieces], "<i4").tobytes(),
        logprobs=np.array([entry.logprob for entry in entries], "<f4").tobytes(),
        ranks=np.array([entry.rank for entry in entries], "<i4").tobytes(),
        top_ids=np.array([entry.top_ids for entry in entries], "<i4").tobytes(),
        top_logprobs=np.array([entry.top_logprobs for entry in entries], "<f4").tobytes(),
    )
