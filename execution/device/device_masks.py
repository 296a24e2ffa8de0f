"""Masks of a device's steps: what samples under them is launched when they are there, or when the device gets there."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...errors import DeviceFault
from ..input_batch import InputBatch
from ..pending_step import HeldStep, PendingStep
from ..token_masks import ArrivingMasks, MaskReader, MaskSource, TokenMasks
from .pending import LaunchedStep
from .seam import Device, Moment
from .staging import StagingRing
from .step_sampler import StepSampler

LaunchSampling = Callable[[TokenMasks | None], PendingStep]
"""Launches what is behind a step's forward pass; None: the step has no constrained rows that sample."""


class DeviceMasks:
    """Of one runner, with a ring of buffers of their own."""

    def __init__(
        self,
        batch: InputBatch,
        source: MaskSource | None,
        vocab_size: int,
        device: Device,
        num_slots: int,
        max_rows: int,
    ) -> None:
        self._reader = MaskReader(batch, source, vocab_size)
        self._device = device
        self._ring = StagingRing(device, num_slots, self._reader.num_bytes + 8 * max_rows)

    def begin(self, step: LaunchedStep) -> ArrivingMasks | None:
        """None if no row that samples is constrained. Raises ProtocolViolation."""
        return self._reader.begin(step.plan.epoch, step.sample_rows, step.sample_runs, step.sample_positions)

    def hold(self, masks: ArrivingMasks, sample: LaunchSampling, settle: Callable[[], None]) -> HeldStep:
        """A step whose forward pass was launched last. settle: gives the host all tokens that were sampled before, on
        which depends what rows forbid beside their masks."""
        forward_end = self._device.mark()
        return HeldStep(lambda: _go_on(masks, forward_end, sample, settle))

    def place(self, masks: TokenMasks | None, step: LaunchedStep, sampler: StepSampler) -> None:
        """Those of the sampling that is launched next."""
        if masks is not None:
            step.is_late = masks.is_late
            sampler.place_masks(masks, step.sample_rows, step.sample_positions, self._ring)


@torch.inference_mode()
def _go_on(
    masks: ArrivingMasks, forward_end: Moment, sample: LaunchSampling, settle: Callable[[], None]
) -> PendingStep | None:
    """Raises DeviceFault."""
    try:
        is_wanted = forward_end.is_past()
        if not masks.read() and not is_wanted:
            return None
        settle()
        return sample(masks.take())
    except torch.AcceleratorError as error:
        raise DeviceFault(str(error)) from error
