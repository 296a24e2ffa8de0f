"""Runs plans on a device: each is launched, and its result waited for when the worker has launched the next one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Hashable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from ...errors import DeviceFault, NotEnoughMemory
from ...mailbox.messages.steps import StepPlan, StepResult
from ...models.device_decoder import DecoderBuffers, DeviceDecoder
from ...speculative.proposer import Proposer
from ...topology.device import DEVICE_POOL_SHARE
from ..collectives.counted import CountedCollective
from ..drafter import Drafter
from ..graph_buckets import graph_bucket
from ..input_batch import InputBatch
from ..pending_step import EndedStep, PendingStep
from ..planned_rows import PlannedRows, read_rows
from ..prepare_inputs import StepInputs, flat_inputs
from ..prompt_pieces import find_prompt_pieces
from ..rank_samplers import whole_group_fails
from ..token_masks import MaskSource, TokenMasks
from ..warm_up import warm_up_plans
from .bounded_proposer import BoundedProposer
from .decode_steps import DecodeSteps
from .device_masks import DeviceMasks, LaunchSampling
from .draft_steps import DraftSteps
from .flat_steps import FlatStep
from .graphs import GraphCache, Mode
from .limits import RunnerLimits
from .pending import NOTHING_SAMPLED, Clock, DeviceStep, LaunchedStep, TokenRing
from .pool import DevicePool
from .rank_samplers import sampler_of_rank
from .sampler_choice import MakeSampler, sampler_for
from .seam import Device
from .staging import StagingRing
from .start_plans import largest_step, prompt_plans
from .state import Changes, DeviceState

_CHANGED_BLOCKS = 1 << 14
"""New blocks of a step that its staging buffer has room for; more are copied one by one, which is slower."""


_NOBODY = np.zeros(0, np.int32)
P = ParamSpec("P")
R = TypeVar("R")


def _launches(method: Callable[Concatenate[DeviceRunner, P], R]) -> Callable[Concatenate[DeviceRunner, P], R]:
    """Other ranks launch the same, and their devices wait for this one's."""

    @wraps(method)
    def launch(runner: DeviceRunner, /, *args: P.args, **options: P.kwargs) -> R:
        if not runner.has_other_ranks:
            return method(runner, *args, **options)
        with whole_group_fails():
            return method(runner, *args, **options)

    return launch


class DeviceRunner:
    """A decoder on a device with its KV pool, and the persistent batch of one rank, on both sides.

    Where the device samples by itself the host learns the tokens when they come; a step with rows that the host has a
    part in is waited for, and so is one that verifies drafts, before the next: how far its rows have come is what the
    host says, and a proposer reads their tokens there.

    Of several ranks, each with its share of the decoder, all run the same plans, and launch the same work but for
    sampling: that is rank 0's, and its tokens come to the others' devices. The host never waits for another rank.
    """

    def __init__(
        self,
        decoder: DeviceDecoder,
        device: Device,
        limits: RunnerLimits,
        *,
        num_blocks: int,
        block_size: int,
        kv_dtype: torch.dtype,
        graphs: Mode = "lazy",
        make_sampler: MakeSampler | None = None,
        masks: MaskSource | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        """make_sampler: in place of the one for the device; masks: of constrained rows, if there may be any; proposer:
        guesses where plans ask for it."""
        shape, there = decoder.local_shape, decoder.device
        self.decoder, self.limits = decoder, limits
        collective = None if decoder.parallel is None else decoder.parallel.collective
        self.has_other_ranks = collective is not None
        self.pool = DevicePool(shape, num_blocks, block_size, kv_dtype, there)
        self.batch = InputBatch(limits.max_num_seqs, limits.max_model_len, block_size)
        self.graphs = GraphCache(device, graphs, collective if isinstance(collective, CountedCollective) else None)
        self._buckets = limits.buckets
        max_rows, max_places, max_tokens = self._buckets[-1], limits.max_places, limits.max_step_tokens
        self._buffers = DecoderBuffers(shape, max_tokens, decoder.dtype, there)
        self._state = DeviceState(self.batch, max_rows, there)
        vocab_size = decoder.shape.vocab_size
        self._num_logits = vocab_size if collective is None or collective.rank == 0 else 0
        self.logits = torch.empty(max_places, self._num_logits, dtype=decoder.dtype, device=there)
        parts = decoder, self.pool.caches, self._buffers, self._state, self.graphs, self.logits, max_rows
        self.decode_steps = DecodeSteps(*parts)
        self.draft_steps = DraftSteps(*parts, limits.draft_buckets) if limits.max_drafts else None
        make_sampler = make_sampler or sampler_for(there)
        if collective is not None:
            make_sampler = sampler_of_rank(make_sampler, collective)
        self._sampler = make_sampler(self._compute_logits, self.batch, vocab_size, max_places, there)
        if proposer is not None:
            proposer = BoundedProposer(proposer, self._sampler.can_draft, max_places - max_rows)
        self._drafter = Drafter(self.batch, proposer)
        num_slots = limits.pipeline_depth + 1
        slot_bytes = 48 * max_tokens + 64 * max_rows + 24 * _CHANGED_BLOCKS
        self._ring = StagingRing(device, num_slots, slot_bytes)
        self._masks = DeviceMasks(self.batch, masks, vocab_size, device, num_slots, max_places)
        self._tokens = TokenRing(device, num_slots, self._sampler.outputs.numel())
        self._clock = Clock()
        self._pending: deque[DeviceStep] = deque()
        self._has_drafts_pending = False
        self._kind_rows = np.zeros(0, np.int32)
        self._kind = self._sampler.kind(self._kind_rows, self._kind_rows)

    def run(self, plan: StepPlan) -> StepResult:
        """A step alone: launched, and waited for."""
        return self.launch(plan).result()

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> PendingStep:
        """Raises ProtocolViolation for a plan that contradicts the batch, DeviceFault; RankFailed for what is raised
        where other ranks wait for this one."""
        try:
            return self._launch(plan)
        except torch.AcceleratorError as error:
            raise DeviceFault(str(error)) from error

    @torch.inference_mode()
    def use_idle_time(self) -> bool:
        """Record one graph that was wanted."""
        return self.graphs.record_next()

    def warm_up(self) -> None:
        """Small steps of every kind; a step of each bucket, which is recorded then or in idle gaps; on a device that
        records, prompts in every number of rows that kernels are made anew for. Raises NotEnoughMemory."""
        try:
            self._warm_up()
        except torch.OutOfMemoryError as error:
            raise NotEnoughMemory(
                f"the KV pool leaves too little for the first steps and their graphs: {error}",
                advice=f"lower [kv_cache] memory_share (default: {DEVICE_POOL_SHARE}) or num_blocks",
            ) from error

    def _warm_up(self) -> None:
        for plan in warm_up_plans(self.pool.block_size, self.batch.max_model_len):
            self.run(plan)
        if self.graphs.can_record:
            self._sampler.warm_up(self.logits)
            for plan in prompt_plans(self.limits, self.pool.block_size, self.pool.num_blocks):
                self.clear()
                self.run(plan)
            for bucket in reversed(self._buckets):  # the largest first: later ones find room in its memory
                self.run_padding(bucket)
                while self.graphs.is_eager and self.graphs.record_next():
                    pass
            self._warm_up_drafts()
        self.clear()

    def _warm_up_drafts(self) -> None:
        for length in self.limits.draft_lengths:
            for bucket in reversed(self.limits.draft_buckets):
                self.run_padding_with_drafts(bucket, length)
                while self.graphs.is_eager and self.graphs.record_next():
                    pass

    def run_largest_step(self) -> None:
        """So that the device has held all that a step may need. The pool has `blocks_of_largest_step`."""
        self.run(largest_step(self.limits, self.pool.block_size))
        self.clear()

    def record_largest(self) -> None:
        """The graphs of the largest bucket, where there are to be any."""
        self.run_padding(self._buckets[-1])
        while self.use_idle_time():
            pass

    def clear(self) -> None:
        """Forget all rows; the pool stays as it is."""
        self._settle()
        self._drafter.clear()
        self.batch.clear()
        self._sampler.clear()
        self._state.clear()

    def last_hidden(self, num_tokens: int) -> Tensor:
        """Hidden states before the final norm, [num_tokens, hidden_size], of the step that was launched last."""
        return self._buffers.take(num_tokens).hidden

    def _launch(self, plan: StepPlan) -> PendingStep:
        start_ns = time.monotonic_ns()
        if self._has_drafts_pending or (plan.max_drafts and self._drafter.has_proposer):
            self._settle()
        self.batch.apply(plan)
        self._sampler.apply(plan)
        self._drafter.apply(plan)
        if plan.new_rows:
            self._state.forget(np.array([new.row for new in plan.new_rows], np.int32))
        planned = read_rows(self.batch, plan, self._drafter if self._drafter.has_proposer else None)
        step = LaunchedStep(plan, planned, self.batch, self._clock, start_ns)
        if not planned.rows.size:
            self._settle()
            return EndedStep(step.end(NOTHING_SAMPLED))
        kind = self._kind_of(step)
        if kind is None:
            self._settle()  # what is sampled may depend on all tokens before it
        masks = self._masks.begin(step)
        sample = self._launch_forward(step, kind)
        return sample(None) if masks is None else self._masks.hold(masks, sample, self._settle)

    @_launches
    def _launch_forward(self, step: LaunchedStep, kind: Hashable | None) -> LaunchSampling:
        """Returns what launches the rest."""
        planned = step.planned
        bucket = graph_bucket(planned.rows.size, self._buckets) if planned.are_all_single else None
        if step.drafted is not None and kind is not None and self.draft_steps is not None:
            return self._forward_drafts(self.draft_steps, step, step.drafted, kind)
        if bucket is None:
            return self._forward_flat(step, kind)
        hidden = self.forward_decode(planned, bucket)
        if kind is None:
            inputs = flat_inputs(self.batch, planned)
            return lambda taken: self._sample_with_host(step, inputs, hidden, taken)
        return lambda taken: self.sample_decode(step, bucket, kind, taken)

    def _kind_of(self, step: LaunchedStep) -> Hashable | None:
        """What the rows want of sampling: asked again where they are others, or the host had a part in it."""
        rows = step.sample_rows
        if step.plan.new_rows or self._kind is None or not np.array_equal(rows, self._kind_rows):
            self._kind_rows, self._kind = rows.copy(), self._sampler.kind(rows, step.sample_positions)
        return self._kind

    # Steps in which every row has one token

    def forward_decode(self, planned: PlannedRows, bucket: int) -> Tensor:
        """Tell the device what it does not know, and compute; returns hidden states [bucket, hidden_size]."""
        state, rows, starts = self._state, planned.rows, planned.starts
        changes = Changes()
        self._ring.open()
        state.bring_order(rows, bucket, changes)
        state.bring_tables(rows, changes)
        is_told = ~state.tokens_there(rows, starts)
        told, positions = rows[is_told], starts[is_told]
        state.bring_tokens(told, positions, self.batch.token_ids[told, positions], changes)
        state.bring_positions(rows, starts, changes)
        self._send(changes)
        hidden = self.decode_steps.forward(bucket)
        self._ring.close()
        return hidden

    @_launches
    def sample_decode(self, step: LaunchedStep, bucket: int, kind: Hashable, masks: TokenMasks | None) -> PendingStep:
        self._masks.place(masks, step, self._sampler)
        self._tokens.order()
        self.decode_steps.sample(bucket, self._sampler, kind)
        self._state.note_advanced(step.planned.rows)
        return self._fetch(step)

    # Steps in which every row samples behind each of its tokens, for some are drafts

    def _forward_drafts(
        self, steps: DraftSteps, step: LaunchedStep, inputs: StepInputs, kind: Hashable
    ) -> LaunchSampling:
        """As `_forward_flat`, which does it where it has to."""
        size = steps.size_of(inputs)
        if size is None:
            return self._forward_flat(step, kind)
        changes = Changes()
        self._ring.open()
        staged = steps.stage(inputs, size[0], self._ring)
        self._state.bring_order(inputs.rows, inputs.rows.size, changes)
        self._state.bring_tables(inputs.rows, changes)
        self._send(changes)
        steps.bring(staged)
        steps.forward(*size)
        self._ring.close()
        return lambda masks: self._sample_drafts(steps, step, size[0], kind, masks)

    @_launches
    def _sample_drafts(
        self, steps: DraftSteps, step: LaunchedStep, bucket: int, kind: Hashable, masks: TokenMasks | None
    ) -> PendingStep:
        self._masks.place(masks, step, self._sampler)
        self._tokens.order()
        steps.sample(bucket, self._sampler, kind)
        return self._fetch(step)

    # Other steps

    def _forward_flat(self, step: LaunchedStep, kind: Hashable | None) -> LaunchSampling:
        """Launch the forward pass; returns what launches the rest."""
        inputs = step.drafted or flat_inputs(self.batch, step.planned)
        changes = Changes()
        self._ring.open()
        flat = FlatStep(inputs, self._state, self._ring)
        self._state.bring_order(inputs.rows, inputs.rows.size, changes)
        self._state.bring_tables(inputs.rows, changes)
        self._state.bring_positions(inputs.rows, inputs.kv_lens, changes)
        self._send(changes)
        hidden = flat.forward(self.decoder, self.pool.caches, self._buffers)
        if (pieces := find_prompt_pieces(self.batch, inputs)) is not None:
            step.of_prompts = self._sampler.prompt_logprobs(pieces, hidden)
        if kind is None:
            self._ring.close()
            return lambda masks: self._sample_with_host(step, inputs, hidden, masks)
        return lambda masks: self._sample_flat(step, inputs, flat, hidden, kind, masks)

    @_launches
    def _sample_flat(
        self,
        step: LaunchedStep,
        inputs: StepInputs,
        flat: FlatStep,
        hidden: Tensor,
        kind: Hashable,
        masks: TokenMasks | None,
    ) -> PendingStep:
        self._masks.place(masks, step, self._sampler)
        self._tokens.order()
        num_sampled = inputs.sample_rows.size
        if num_sampled:
            logits = self.logits[:num_sampled]
            flat.sample(self.decoder, hidden, logits, self._sampler, kind)
        self._ring.close()
        return self._fetch(step)

    # Both

    def _send(self, changes: Changes) -> None:
        staged = changes.stage(self._ring)
        self._ring.send()
        self._state.apply(staged)
        self._state.refresh_step_tables()

    def _fetch(self, step: LaunchedStep) -> DeviceStep:
        """The tokens of a step that the device sampled begin their way to the host."""
        rows, positions = step.sample_rows, step.sample_positions
        if step.drafted is not None:
            self._state.note_drafted(rows)
            self._has_drafts_pending = True
        else:
            self._state.note_sampled(rows, positions)
            self.batch.expect_sampled(rows, positions)
        outputs = self._sampler.outputs
        step.read_logprobs = self._sampler.logprob_reader(rows)
        if step.read_logprobs is None:
            outputs = outputs[: rows.size]
        pending = self._tokens.fetch(outputs, step)
        while self._pending and self._pending[0].is_settled:
            self._pending.popleft()
        self._pending.append(pending)
        return pending

    def _sample_with_host(
        self, step: LaunchedStep, inputs: StepInputs, hidden: Tensor, masks: TokenMasks | None
    ) -> PendingStep:
        if not inputs.sample_rows.size:
            return EndedStep(step.end(NOTHING_SAMPLED))
        sampled = self._sampler.sample(hidden, inputs, masks)
        step.is_late = None if masks is None else masks.is_late
        if step.drafted is not None:
            self._state.note_drafted(inputs.sample_rows)
        return EndedStep(step.end(sampled))

    def _settle(self) -> None:
        """Wait until the host knows all tokens that were sampled."""
        while self._pending:
            self._pending.popleft().settle()
        self._has_drafts_pending = False

    def _compute_logits(self, hidden: Tensor) -> Tensor:
        """[k, hidden_size] -> [k, vocab_size] of the model's dtype; [k, 0] on a rank that does not sample"""
        out = hidden.new_empty(hidden.shape[0], self._num_logits)
        self.decoder.logits(hidden, out)
        return out

    @torch.inference_mode()
    def run_padding(self, bucket: int) -> None:
        """A decode step of so many rows, all of them padding."""
        self._state.bring_padding(bucket)
        self.decode_steps.forward(bucket)
        self.decode_steps.sample(bucket, self._sampler, self._sampler.kind(_NOBODY, _NOBODY))

    @torch.inference_mode()
    def run_padding_with_drafts(self, bucket: int, length: int) -> None:
        """A step of so many tokens of rows that have up to `length`, all of them padding."""
        assert self.draft_steps is not None
        self.draft_steps.bring_padding(bucket)
        self.draft_steps.forward(bucket, length)
        self.draft_steps.sample(bucket, self._sampler, self._sampler.kind(_NOBODY, _NOBODY))
