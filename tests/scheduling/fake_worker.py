"""A worker made of plain values, which checks everything that the scheduler sends it.

The fake model's next token is a function of all tokens before it, so a wrong token, a wrong order or a K/V read from
the wrong block changes the text. K/V of a position is the hash of the tokens up to it (and of the cache salt, which
must never be shared): each read of a row is compared with what that row's own tokens make it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import NamedTuple

import msgspec
import numpy as np

from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.fake_model import EOS, contents
from callboard.tests.scheduling.fake_rows import Results, Row, describe_prompts, drafts_of, guesses_of, ints
from callboard.topology.boards import TOKENS_PER_SAMPLING_ENTRY, plan_bytes
from callboard.topology.schema import KVCacheSection, ModelSection, SchedulerSection, SpeculativeSection, Topology

Key = tuple[str, int]
"""(request_id, choice)"""


def make_limits(**changes: object) -> SchedulerLimits:
    """Limits of an ordinary small engine, with changes."""
    fields: dict[str, object] = dict(
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        long_prefill_token_threshold=0,
        pipeline_depth=2,
        watermark=0.0,
        max_queued_requests=1024,
        max_queued_tokens=1_000_000,
        num_blocks=1000,
        block_size=16,
        prefix_caching=True,
        max_model_len=16_000,
    )
    return SchedulerLimits(**(fields | changes))  # type: ignore[arg-type]


def board_bytes(limits: SchedulerLimits) -> int:
    """What a slot of the call board holds for these limits."""
    topology = Topology(
        model=ModelSection("any"),
        scheduler=SchedulerSection(
            max_num_seqs=limits.max_num_seqs,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            pipeline_depth=limits.pipeline_depth,
        ),
        kv_cache=KVCacheSection(block_size=limits.block_size),
        speculative=SpeculativeSection("ngram", max_tokens=limits.max_drafts) if limits.max_drafts else None,
    )
    return plan_bytes(topology, limits.max_model_len)


def make_admit(request_id: str, prompt: list[int], **changes: object) -> Admit:
    """An Admit; sampling parameters among the changes go where they belong."""
    names = [name for name in SamplingParams.__struct_fields__ if name in changes]
    sampling = {"seed": 1, "max_tokens": 10} | {name: changes.pop(name) for name in names}
    fields: dict[str, object] = dict(
        request_id=request_id,
        choice=0,
        attempt=1,
        tokenizer="tokenizer",
        prompt_token_ids=prompt,
        sampling=SamplingParams(**sampling),  # type: ignore[arg-type]
        eos_token_ids=(EOS,),
        arrival_ns=0,
    )
    return Admit(**(fields | changes))  # type: ignore[arg-type]


class PlannedRow(NamedTuple):
    """What a row computes in a step."""

    row: int
    run: int
    start: int
    count: int
    samples: bool
    drafts: list[int]


class FakeWorker:
    """Executes plans in order, as data. `admits` maps request keys to what was admitted, for salts and limits; `turns`
    those of sessions, by the length of their prompts, to what each turn would be as a request of its own.

    A step that computes the position that `raises` has for a request fails, as do the next `num_to_fail`; until a fresh
    plan comes what stands behind it is void. What a failed step wrote is garbage.
    """

    def __init__(self, limits: SchedulerLimits, admits: dict[Key, Admit], epoch: int) -> None:
        self.limits, self.admits, self.epoch = limits, admits, epoch
        self.turns: dict[tuple[Key, int], Admit] = {}
        self.rows: dict[int, Row] = {}
        self.keys: dict[int, Key] = {}
        self.kv: dict[tuple[int, int], int] = {}
        self.last_step: int | None = None
        self.raises: dict[Key, int] = {}
        self.num_to_fail = 0
        self.num_to_be_late = 0
        """So many masks of constrained rows will not be there when they sample."""
        self.is_void = False
        self.may_starve: Container[int] | None = None
        """Steps that may leave rows out which need tokens; None: any."""
        self._drafted: deque[set[int]] = deque(maxlen=max(1, limits.pipeline_depth - 1))
        """Rows with drafts, of the steps whose results the scheduler may not have had; and those that had no mask."""

    def work(self, encoded: bytes, now_ns: int) -> StepResult:
        plan = msgspec.msgpack.decode(encoded, type=StepPlan)
        assert plan.epoch == self.epoch
        assert self.last_step is None or plan.step == self.last_step + 1, "a plan was lost"
        self.last_step = plan.step
        assert not plan.is_fresh or self.is_void, "a fresh plan though no step failed"
        if plan.is_fresh:
            assert not plan.removed_rows and sorted(new.row for new in plan.new_rows) == sorted(ints(plan.rows))
            self.rows.clear()
            self.is_void = False
        if self.is_void:
            return self._nothing(plan, now_ns, StepOutcome.VOID)
        self._apply(plan)
        if self.num_to_fail or self.keys_at(plan, self.raises):
            self.num_to_fail = max(0, self.num_to_fail - 1)
            self.is_void = True
            self._write_garbage(plan)
            return self._nothing(plan, now_ns, StepOutcome.FAILED)
        return self._run(plan, now_ns)

    def keys_at(self, plan: StepPlan, positions: dict[Key, int]) -> list[Key]:
        """The requests that compute their position of `positions` in this step."""
        named = {new.run: (new.request_id, new.choice) for new in plan.new_rows}
        found = []
        for row in self.rows_of(plan):
            key = named.get(row.run) or self.keys[row.run]
            if row.start <= positions.get(key, -1) < row.start + row.count:
                found.append(key)
        return found

    def rows_of(self, plan: StepPlan) -> list[PlannedRow]:
        """What each row computes: as the plan says, or from where it stands, with guesses of this worker. Whoever has
        come to its end computes nothing."""
        columns = (
            ints(plan.rows),
            np.frombuffer(plan.runs, "<i8").tolist(),
            ints(plan.starts),
            ints(plan.num_tokens),
            np.frombuffer(plan.samples, np.bool_).tolist(),
            drafts_of(plan),
            guesses_of(plan),
        )
        planned = []
        for index, run, start, count, samples, drafts, (most, end) in zip(*columns, strict=True):
            if most < 0:
                planned.append(PlannedRow(index, run, start, count, samples, drafts))
                continue
            row = self.rows[index]
            assert (count, samples, drafts) == (1, True, []), "a row that guesses decodes"
            last = len(row.token_ids) - 1
            assert last >= start or row.admit.grammar_key, "a row stands before where the scheduler knows it to be"
            if last < end:
                guesses = row.guess()[: min(most, end - last - 1)]
                planned.append(PlannedRow(index, run, last, 1 + len(guesses), True, guesses))
        return planned

    def _write_garbage(self, plan: StepPlan) -> None:
        for row in self.rows_of(plan):
            for position in range(row.start, row.start + row.count):
                block = self.rows[row.row].block_ids[position // self.limits.block_size]
                self.kv[block, position % self.limits.block_size] = -1

    def _nothing(self, plan: StepPlan, now_ns: int, outcome: StepOutcome) -> StepResult:
        error = "RuntimeError: a planted fault" if outcome is StepOutcome.FAILED else ""
        return StepResult(plan.epoch, plan.step, b"", b"", b"", now_ns, now_ns, outcome=outcome, error=error)

    def _apply(self, plan: StepPlan) -> None:
        for row in ints(plan.removed_rows):
            del self.rows[row]
        for new in plan.new_rows:
            assert 0 <= new.row < self.limits.max_num_seqs and new.row not in self.rows, "the row is taken"
            key = (new.request_id, new.choice)
            admit = self.turns.get((key, new.num_prompt_tokens), self.admits[key])
            token_ids = ints(new.token_ids)
            assert new.num_prompt_tokens == len(admit.prompt_token_ids)
            assert token_ids[: new.num_prompt_tokens] == list(admit.prompt_token_ids)
            assert new.sampling == true_row_sampling(admit, len(token_ids) > new.num_prompt_tokens)
            assert new.first_output_index == admit.first_output_index
            self.rows[new.row] = Row(new, admit)
            self.keys[new.run] = key
        known = [
            len(new.token_ids) // 4 + TOKENS_PER_SAMPLING_ENTRY * new.sampling.num_entries for new in plan.new_rows
        ]
        assert len(known) <= 1 or sum(known) <= self.limits.plan_tokens, "too many known tokens travel in one plan"
        for row, block in zip(ints(plan.block_rows), ints(plan.block_ids), strict=True):
            self.rows[row].block_ids.append(block)

    def _run(self, plan: StepPlan, now_ns: int) -> StepResult:
        size = self.limits.block_size
        rows, counts = ints(plan.rows), ints(plan.num_tokens)
        guesses = guesses_of(plan)
        assert len(rows) == len(set(rows)) == len(plan.runs) // 8 == len(plan.samples) >= 1
        assert sum(counts) + sum(max(0, most) for most, _ in guesses) <= self.limits.max_num_batched_tokens
        assert all(1 <= count <= (self.limits.long_prefill_token_threshold or sum(counts)) for count in counts)
        for row, (_, end) in zip(rows, guesses, strict=True):
            assert end <= len(self.rows[row].block_ids) * size, "a row guesses where it has no block"
        self._check_nobody_starves(plan, rows)
        planned = self.rows_of(plan)
        is_unsure = {row for row, (most, _) in zip(rows, guesses, strict=True) if most >= 0}
        self._drafted.append(is_unsure | {row.row for row in planned if row.drafts})
        own = [
            contents(self.rows[row.row].token_ids + row.drafts, self.rows[row.row].admit.cache_salt) for row in planned
        ]
        writer: dict[int, int] = {}
        for row, content in zip(planned, own, strict=True):
            batch_row, end = self.rows[row.row], row.start + row.count
            assert batch_row.run == row.run, "the row belongs to another run"
            assert end <= len(content) or batch_row.is_late, "a token is computed that nobody knows"
            assert not row.drafts or (row.count == 1 + len(row.drafts) and end == len(content)), "drafts in a gap"
            for position in range(row.start, end):
                block = batch_row.block_ids[position // size]
                assert 0 <= block < self.limits.num_blocks
                assert writer.setdefault(block, row.run) == row.run, "a block is written by two rows in one step"
                self.kv[block, position % size] = content[position] if position < len(content) else -1
        for row, content in zip(planned, own, strict=True):
            blocks = self.rows[row.row].block_ids
            for position in range(min(row.start + row.count, len(content))):
                read = self.kv.get((blocks[position // size], position % size))
                assert read == content[position], f"row {row.row} reads another's K/V at position {position}"
        return self._sample(plan, planned, now_ns)

    def _check_nobody_starves(self, plan: StepPlan, rows: list[int]) -> None:
        """Every row that needs a token gets one, if there are enough; with drafts being judged it needs none."""
        has_tokens_for_all = self.limits.max_num_batched_tokens >= self.limits.max_num_seqs
        if not has_tokens_for_all or self.may_starve is None or plan.step in self.may_starve:
            return
        for row in self.rows.keys() - set(rows) - set().union(*self._drafted):
            admit = self.rows[row].admit
            most = len(admit.prompt_token_ids) + (admit.sampling.max_tokens or 0)
            assert len(self.rows[row].token_ids) == min(most, self.limits.max_total_tokens), "a row starves"

    def _sample(self, plan: StepPlan, planned: list[PlannedRow], now_ns: int) -> StepResult:
        results = Results()
        for index, run, start, count, is_sampled, drafts in planned:
            row = self.rows[index]
            position = start + count - len(drafts)
            is_due = position == len(row.token_ids)
            assert is_sampled == (is_due or row.is_late), "a row samples before its last known token"
            if not is_sampled:
                continue
            row.is_late = self._is_late(row) or not is_due
            if row.is_late:
                self._drafted[-1].add(row.row)
                results.add(run, position, [], None)
                continue
            sampled = row.sample(drafts)
            last = position + len(drafts)
            assert last < self.limits.max_total_tokens, "sampled past the model's length"
            assert row.admit.sampling.max_tokens is not None
            assert last - row.num_prompt_tokens < row.admit.sampling.max_tokens, "sampled past max_tokens"
            results.add(run, position, sampled, row.admit.sampling.logprobs, len(drafts))
        pieces = [(self.rows[row.row], row.run, row.start, row.count) for row in planned]
        return results.build(plan, now_ns, describe_prompts(pieces))

    def _is_late(self, row: Row) -> bool:
        is_late = self.num_to_be_late > 0 and bool(row.admit.grammar_key)
        self.num_to_be_late -= is_late
        return is_late


def true_row_sampling(admit: Admit, has_output: bool) -> SamplingParams:
    """What the worker is to be told: no texts, no repetition, all that may not end the request before `min_tokens`,
    and prompt log-probabilities only of a row that begins with the prompt alone."""
    sampling = admit.sampling
    ends = (*(() if sampling.ignore_eos else admit.eos_token_ids), *sampling.stop_token_ids)
    return msgspec.structs.replace(
        sampling,
        stop=(),
        bad_words=(),
        repetition_detection=None,
        stop_token_ids=tuple(sorted(set(ends), key=ends.index)) if sampling.min_tokens else (),
        prompt_logprobs=None if has_output else sampling.prompt_logprobs,
    )
