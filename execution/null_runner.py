"""Runs plans on the null device: everything that a worker does but a model. No torch.

It is stricter than a model, which computes rubbish from a wrong plan: what a row finds in its blocks must be its own.
"""

from __future__ import annotations

import time

import numpy as np

from ..errors import ProtocolViolation
from ..kernels.bitmask_words import allowed_tokens
from ..mailbox.messages.steps import PromptLogprobs, StepPlan, StepResult
from ..speculative.proposer import Proposer
from .drafter import Drafter
from .input_batch import InputBatch, Int32s
from .null_tokens import (
    UInt64s,
    allowed_near,
    keys_of,
    mix,
    nearest_of,
    tokens_of,
    top_ids_of,
    top_logprobs_of,
    traces_of,
)
from .pending_step import EndedStep, HeldStep, PendingStep
from .prepare_inputs import StepInputs, prepare_inputs
from .prompt_pieces import find_prompt_pieces
from .sampler import Sampled
from .token_masks import MaskReader, MaskSource, TokenMasks
from .yields import NO_YIELDS, result_of, take_yields

_NEVER = -1


class NullRunner:
    """The persistent batch of one rank, and a trace for each slot of the KV pool in place of keys and values."""

    def __init__(
        self,
        *,
        visible_ids: Int32s,
        eos_token_id: int | None,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int,
        masks: MaskSource | None = None,
        vocab_size: int = 0,
        proposer: Proposer | None = None,
    ) -> None:
        """visible_ids: the tokens that are drawn, each with text; `null_tokens` says how. masks: of so many tokens, for
        constrained rows, if there may be any. proposer: guesses where plans ask for it."""
        self.batch = InputBatch(max_num_seqs, max_model_len, block_size)
        self._drafter = Drafter(self.batch, proposer)
        self._masks, self._vocab_size = MaskReader(self.batch, masks, vocab_size), vocab_size
        self._visible_ids, self._eos_token_id = visible_ids, eos_token_id
        self._traces: UInt64s = np.zeros((num_blocks, block_size), np.uint64)
        self._block_sums: UInt64s = np.zeros(num_blocks, np.uint64)
        """Of all traces in a block."""
        self._next_start: Int32s = np.zeros(max_num_seqs, np.int32)
        """Where a row goes on, once it has computed anything."""
        self._next_run = np.full(max_num_seqs, -1, np.int64)
        """The run that `_next_start` is of."""
        self._late_start: Int32s = np.full(max_num_seqs, _NEVER, np.int32)
        """Where the row goes back to, as its mask was late there, if it does."""

    def launch(self, plan: StepPlan) -> PendingStep:
        """Apply the plan, write the traces of its tokens, draw; those under masks when the step goes on.

        Raises ProtocolViolation for a plan that contradicts the batch: what `ModelRunner` refuses, a block outside the
        pool, a slot that two rows write, a row that does not go on where it was, cached blocks of other tokens.
        """
        start_ns = time.monotonic_ns()
        self._check_blocks(plan)
        self.batch.apply(plan)
        self._drafter.apply(plan)
        inputs = prepare_inputs(self.batch, plan, self._drafter if self._drafter.has_proposer else None)
        if inputs.rows.size:
            hits = self._advance(inputs)
            self._write(inputs)
            for i in hits:
                self._check_hit(int(inputs.rows[i]), int(inputs.starts[i]))
        masks = self._masks.begin(
            plan.epoch, inputs.sample_rows, inputs.sample_runs, inputs.sample_positions, inputs.sample_counts
        )
        if masks is None:
            return EndedStep(self._sample(plan, inputs, start_ns, None))
        return HeldStep(lambda: EndedStep(self._sample(plan, inputs, start_ns, masks.take())))

    def use_idle_time(self) -> bool:
        """Nothing is done ahead."""
        return False

    def run(self, plan: StepPlan) -> StepResult:
        """A step alone."""
        return self.launch(plan).result()

    def warm_up(self) -> None:
        """Fill numpy's cache of freed arrays (7 of each size under 1 KiB), which otherwise fills over 100,000 requests:
        what a long run shows to grow is a leak then."""
        arrays = [np.empty(num_bytes, np.uint8) for num_bytes in range(1, 1024) for _ in range(7)]
        del arrays

    def clear(self) -> None:
        """Forget all rows. The pool stays as it is, as on a device."""
        self._drafter.clear()
        self.batch.clear()
        self._next_run[:] = -1

    def _check_blocks(self, plan: StepPlan) -> None:
        num_blocks = self._block_sums.size
        for field in (plan.block_ids, *(new.block_ids for new in plan.new_rows)):
            block_ids = np.frombuffer(field, np.int32)
            if block_ids.size and not 0 <= block_ids.min() <= block_ids.max() < num_blocks:
                raise ProtocolViolation(f"a plan names a block outside 0..{num_blocks - 1}: {block_ids.tolist()}")

    def _advance(self, inputs: StepInputs) -> list[int]:
        """Move the rows on; returns the indexes of those that begin behind cached blocks."""
        rows, starts = inputs.rows, inputs.starts
        runs = self.batch.run[rows]
        is_known = self._next_run[rows] == runs
        goes_back = is_known & (self._late_start[rows] == starts)
        self._late_start[rows[goes_back | ~is_known]] = _NEVER
        is_faulty = is_known & (self._next_start[rows] != starts) & ~goes_back
        if is_faulty.any():
            i = int(is_faulty.argmax())
            raise ProtocolViolation(
                f"row {rows[i]} (run {runs[i]}) begins at position {starts[i]}, it has computed the ones before "
                f"{self._next_start[rows[i]]}"
            )
        self._next_run[rows] = runs
        self._next_start[rows] = starts + inputs.num_tokens
        return [int(i) for i in np.flatnonzero(~is_known & (starts > 0))]

    def _write(self, inputs: StepInputs) -> None:
        slots = inputs.slot_mapping
        if slots.size > 1:
            ordered = np.sort(slots)
            if (ordered[1:] == ordered[:-1]).any():
                twice = ordered[1:][ordered[1:] == ordered[:-1]][0]
                raise ProtocolViolation(f"two tokens of a step go into one slot of block {twice // self._block_size}")
        self._traces.reshape(-1)[slots] = traces_of(inputs.token_ids, inputs.positions)
        blocks = slots // self._block_size
        self._block_sums[blocks] = self._traces[blocks].sum(axis=1)

    def _check_hit(self, row: int, num_cached: int) -> None:
        """The blocks that a row found in the prefix cache hold its own tokens, those written in this step included."""
        positions = np.arange(num_cached)
        blocks = self.batch.block_table[row, positions // self._block_size]
        found = self._traces[blocks, positions % self._block_size]
        is_wrong = found != traces_of(self.batch.token_ids[row, :num_cached].astype(np.int64), positions)
        if is_wrong.any():
            position = int(is_wrong.argmax())
            raise ProtocolViolation(
                f"row {row} (run {self.batch.run[row]}) begins behind {num_cached} cached tokens, but block "
                f"{blocks[position]} does not hold its token at position {position}"
            )

    def _sample(self, plan: StepPlan, inputs: StepInputs, start_ns: int, masks: TokenMasks | None) -> StepResult:
        yields = NO_YIELDS
        if inputs.sample_rows.size:
            draws = self._draw(inputs)
            token_ids = tokens_of(draws, self._visible_ids, self._eos_token_id)
            if masks is not None:
                self._obey(masks, token_ids, draws)
            sampled = Sampled(token_ids, self._logprobs(draws, token_ids, inputs.sample_rows))
            is_late = None if masks is None else masks.is_late
            stays = self._drafter.stays_without_masks
            yields = take_yields(self.batch, inputs, sampled, is_late, stays=stays)
            if stays or inputs.sample_counts is not None:  # drafts that were not accepted are computed again
                self._next_start[inputs.sample_rows] = self.batch.num_known[inputs.sample_rows] - 1
            elif masks is not None:
                self._note_late(inputs.sample_rows[masks.is_late], inputs.sample_positions[masks.is_late])
        of_prompts = self._prompt_logprobs(inputs) if inputs.rows.size else None
        next_drafts = self._drafter.guess_ahead()
        return result_of(plan, yields, start_ns, time.monotonic_ns(), of_prompts, next_drafts)

    def _note_late(self, rows: Int32s, positions: Int32s) -> None:
        """They compute their last token once more; later steps in flight may go on with one that nobody knows."""
        is_first = self._late_start[rows] == _NEVER
        self._late_start[rows[is_first]] = positions[is_first] - 1

    def _obey(self, masks: TokenMasks, token_ids: Int32s, draws: UInt64s) -> None:
        """Give each row with a mask, in place, the allowed token nearest to the one drawn, and the draw of its nearest
        visible one, which the tokens that are named beside it follow."""
        indexes = masks.indexes
        token_ids[indexes] = allowed_near(token_ids[indexes], allowed_tokens(masks.words, self._vocab_size))
        draws[indexes] = nearest_of(token_ids[indexes], self._visible_ids)

    def _draw(self, inputs: StepInputs) -> UInt64s:
        """[k]: from the traces of all positions before the one that is drawn."""
        rows, ends, size = inputs.sample_rows, inputs.sample_positions, self._block_size
        num_full = ends // size
        width = int(num_full.max()) + 1
        tables = self.batch.block_table[rows, :width]
        whole = np.where(np.arange(tables.shape[1]) < num_full[:, None], self._block_sums[tables], 0).sum(axis=1)
        last = tables[np.arange(rows.size), np.minimum(num_full, tables.shape[1] - 1)]
        is_in_last = np.arange(size) < (ends % size)[:, None]
        rest = np.where(is_in_last, self._traces[last], 0).sum(axis=1)
        sampling = self.batch.sampling
        keys = keys_of(sampling.seed[rows], sampling.choice[rows], sampling.temperature[rows])
        return mix(whole.astype(np.uint64) + rest.astype(np.uint64) + keys)

    def _logprobs(self, draws: UInt64s, token_ids: Int32s, rows: Int32s) -> dict[str, bytes]:
        """The fields of StepResult about log-probabilities; empty if no row asks."""
        asking = np.flatnonzero(self.batch.sampling.has_logprobs[rows])
        if not asking.size:
            return {}
        num_top = int(self.batch.sampling.num_logprobs[rows[asking]].max())
        return {
            "logprob_rows": asking.astype(np.int32).tobytes(),
            "logprobs": top_logprobs_of(asking.size, 1).tobytes(),
            "top_ids": top_ids_of(draws[asking], token_ids[asking], self._visible_ids, num_top).tobytes(),
            "top_logprobs": top_logprobs_of(asking.size, num_top).tobytes(),
        }

    def _prompt_logprobs(self, inputs: StepInputs) -> PromptLogprobs | None:
        """Every token of a prompt is the most likely in its place, with probability 1/2."""
        pieces = find_prompt_pieces(self.batch, inputs)
        if pieces is None:
            return None
        num_tokens = pieces.token_ids.size
        return pieces.encode(
            logprobs=top_logprobs_of(num_tokens, 1)[:, 0],
            ranks=np.ones(num_tokens, np.int32),
            top_ids=top_ids_of(
                nearest_of(pieces.token_ids, self._visible_ids),
                pieces.token_ids.astype(np.int32),
                self._visible_ids,
                pieces.num_top,
            ),
            top_logprobs=top_logprobs_of(num_tokens, pieces.num_top),
        )

    @property
    def _block_size(self) -> int:
        return self.batch.block_size
