"""Step times that are known beforehand, and limits with room for everything."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from callboard.scheduling import SchedulerLimits
from callboard.simulation import StepLoad


class ConstantSteps:
    """Every step takes as long."""

    def __init__(self, step_ns: int) -> None:
        self._step_ns = step_ns

    def step_ns(self, load: StepLoad) -> int:
        return self._step_ns


class AffineSteps:
    """1 ms, and 10 us a token."""

    def step_ns(self, load: StepLoad) -> int:
        return 1_000_000 + 10_000 * load.num_tokens


MakeLimits = Callable[..., SchedulerLimits]


@pytest.fixture
def make_limits() -> MakeLimits:
    def make(**changes: object) -> SchedulerLimits:
        fields: dict[str, object] = {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 64,
            "long_prefill_token_threshold": 0,
            "pipeline_depth": 2,
            "watermark": 0.0,
            "max_queued_requests": 10_000,
            "max_queued_tokens": 10_000_000,
            "num_blocks": 4096,
            "block_size": 16,
            "prefix_caching": False,
            "max_model_len": 4096,
        }
        return SchedulerLimits(**{**fields, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture
def constant_steps() -> Callable[[int], ConstantSteps]:
    return ConstantSteps


@pytest.fixture
def affine_steps() -> AffineSteps:
    return AffineSteps()
