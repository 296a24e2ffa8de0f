"""The roofline against arithmetic by hand and a measured engine; the fit against planted weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.checkpoints import Checkpoint, ModelShape, read_shape
from callboard.errors import ConfigError, NotEnoughMemory
from callboard.mailbox.messages.steps import StepPlan
from callboard.scheduling.events import Event
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.simulation import (
    DEVICES,
    ControlTimes,
    DeviceSpec,
    FittedSteps,
    Roofline,
    StepLoad,
    StepSample,
    TraceRequest,
    find_device,
    fit,
    kv_blocks,
)
from callboard.simulation.capacity import weight_bytes
from callboard.simulation.fit import _least_squares, _parts
from callboard.simulation.measured_steps import MeasuredSteps
from callboard.simulation.run import Simulation
from callboard.simulation.step_load import decode_load, load_of

FOLDER = Path(__file__).parent.parent / "data"
GOLDEN = json.loads((FOLDER / "golden.json").read_text())
H200_DECODE_MS = {1: 4.96, 8: 5.16, 32: 5.88, 64: 6.80, 128: 8.81, 256: 13.87}
"""Batch -> a step of Llama-3.1-8B in bfloat16 at 576 tokens, by vLLM 0.24 on one H200, measured 2026-11-29."""


@pytest.fixture(scope="module")
def llama_8b() -> ModelShape:
    path = str(FOLDER / "llama_3_1_8b")
    return read_shape(Checkpoint(f"dummy:{path}", "dummy", path, "llama"))


@pytest.mark.parametrize(("batch", "measured_ms"), H200_DECODE_MS.items())
def test_decode_on_an_h200_is_as_measured(llama_8b: ModelShape, batch: int, measured_ms: float) -> None:
    load = decode_load(np.full(batch, 575, np.int32))
    assert Roofline(llama_8b, DEVICES["h200"]).step_ns(load) / 1e6 == pytest.approx(measured_ms, rel=0.1)


def test_prefill_on_an_h200_is_as_measured(llama_8b: ModelShape) -> None:
    load = load_of(np.zeros(1, np.int32), np.full(1, 2048, np.int32), 1)
    assert Roofline(llama_8b, DEVICES["h200"]).step_ns(load) / 1e6 == pytest.approx(52.5, rel=0.1)


def tiny_shape(**changes: object) -> ModelShape:
    """Matrices of 2 layers: q, k, v, o 8 * 8 each, three of 16 * 8: 640 elements a layer; the head has 100 * 8."""
    shape = ModelShape(
        architecture="llama",
        num_layers=2,
        hidden_size=8,
        num_heads=2,
        num_kv_heads=2,
        head_dim=4,
        intermediate_size=16,
        vocab_size=100,
        max_position=64,
        rope_theta=1e4,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(),
        num_parameters=0,
    )
    return msgspec.structs.replace(shape, **changes)


def test_a_step_by_hand() -> None:
    """1 GB/s and 1 GFLOP/s: a byte or an operation is a nanosecond, so arithmetic rules but for keys and values at 1
    row.

    One decode at context 10: linear max((1280 + 800) * 2, 2 * (1280 + 800)) = 4,160; keys and values 10 * 2 * 2 * 8 * 2
    = 640 bytes, 4 * 2 * 2 * 4 * 10 = 640 operations; 1,000 a step and 100 a row.
    """
    device = DeviceSpec("d", 1e9, 1e9, 1, bandwidth_share=1.0, flops_share=1.0, step_overhead_us=1, row_overhead_us=0.1)
    roofline = Roofline(tiny_shape(), device)
    assert roofline.step_ns(decode_load(np.array([9], np.int32))) == 1000 + 100 + 4160 + 640
    # a chunk of 3 behind 4, that yields nothing: 2 * 1280 * 3; pairs 5 + 6 + 7 = 18; positions read once: 7
    chunk = load_of(np.array([4], np.int32), np.array([3], np.int32), 0)
    assert chunk == StepLoad(0, 1, 3, 0, 7, 18, 0)
    assert roofline.step_ns(chunk) == 1000 + 100 + 7680 + max(7 * 64, 18 * 64)
    tied = Roofline(tiny_shape(tie_word_embeddings=True), device)
    assert tied.step_ns(chunk) == roofline.step_ns(chunk)
    windowed = Roofline(tiny_shape(windows=(4, None)), device)
    assert windowed.step_ns(decode_load(np.array([9], np.int32))) == 1000 + 100 + 4160 + 320 + 128


def test_a_device_has_room_for(llama_8b: ModelShape) -> None:
    """The golden 1 GiB of 8,192 tokens beside the weights: 512 blocks of 16."""
    weights = weight_bytes(llama_8b, 4096, 2)
    assert weights == pytest.approx(16.06e9, rel=0.001)
    room = weights + GOLDEN["kv_bytes_8192_tokens_llama8b"]["value"]
    device = DeviceSpec("d", 1e12, 1e12, room)
    sizes = {"max_model_len": 4096, "block_size": 16}
    assert kv_blocks(llama_8b, device, kv_share=1.0, **sizes) == 512
    assert kv_blocks(llama_8b, device, kv_share=1.0, kv_dtype_bytes=1, **sizes) == 1024
    assert kv_blocks(llama_8b, device, kv_share=0.5, **sizes) == 256
    with pytest.raises(NotEnoughMemory, match=r"no block of 2\.0 MiB fits into 90% of the rest"):
        kv_blocks(llama_8b, DeviceSpec("d", 1e12, 1e12, weights), **sizes)


def test_finding_a_device(tmp_path: Path) -> None:
    assert find_device("h100-sxm").bandwidth == 3.35e12
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nbandwidth = 1e9\nflops = 2e9\nmemory_bytes = 1000\n')
    assert find_device(str(path)).flops == 2e9
    path.write_text('name = "mine"\nbandwidth = 1e9\nflop = 2e9\nmemory_bytes = 1000\n')
    with pytest.raises(ConfigError, match="unknown field `flop`"):
        find_device(str(path))
    with pytest.raises(ConfigError, match="no device 'b2000'") as caught:
        find_device("b2000")
    assert "h100-sxm" in str(caught.value.advice)


def random_loads(number: int) -> list[StepLoad]:
    draw = np.random.default_rng(3)
    loads = []
    for _ in range(number):
        num_rows = int(draw.integers(1, 20))
        counts = np.where(draw.random(num_rows) < 0.2, draw.integers(2, 300, num_rows), 1).astype(np.int32)
        loads.append(load_of(draw.integers(0, 900, num_rows).astype(np.int32), counts, num_rows))
    return loads


def test_a_fit_finds_planted_weights() -> None:
    planted = FittedSteps((2e6, 5e4, 1e5, 2e4, 30.0, 0.0, 1.5), 0, 0.0, 0.0)
    found = fit([StepSample(planted.step_ns(load), load) for load in random_loads(300)])
    assert found.weights_ns == pytest.approx(planted.weights_ns, rel=0.01, abs=0.5)
    assert found.residual < 1e-4
    assert "300 steps" in found.lines()[0]


def test_pairs_of_short_prompts_are_taken_for_tokens() -> None:
    """Prompts of 30 to 90 tokens whose cost is per pair in truth: a fit by pairs would be 11 times off at 1,000."""
    loads = [load_of(np.zeros(1, np.int32), np.array([n], np.int32), 1) for n in range(30, 90)]
    found = fit([StepSample(2_000_000 + 1000 * load.prefill_pairs, load) for load in loads])
    assert found.weights_ns[6] == 0
    assert found.median_error < 0.1


def test_a_few_steps_that_are_far_off_are_left_out() -> None:
    planted = FittedSteps((2e6, 5e4, 1e5, 2e4, 30.0, 0.0, 0.0), 0, 0.0, 0.0)
    loads = random_loads(300)
    durations = [planted.step_ns(load) * (4 if i % 30 == 7 else 1) for i, load in enumerate(loads)]
    found = fit([StepSample(duration, load) for duration, load in zip(durations, loads, strict=True)])
    assert found.weights_ns == pytest.approx(planted.weights_ns, rel=0.01, abs=0.5)


def test_a_busy_machine_does_not_make_the_fit_fast() -> None:
    """Times with a long tail (log-normal, mean 1): the fit has the mean, each weight by itself. Relative to what was
    measured it would be 1 / (1 + 0.27)^2 of it, as the mean of 1 / x over that of 1 / x^2 is."""
    planted = FittedSteps((2e6, 5e4, 0.0, 2e4, 0.0, 0.0, 0.0), 0, 0.0, 0.0)
    draw, sigma = np.random.default_rng(5), 0.49
    loads = random_loads(5000)
    factors = draw.lognormal(-(sigma**2) / 2, sigma, len(loads))
    found = fit(
        [StepSample(round(planted.step_ns(load) * factor), load) for load, factor in zip(loads, factors, strict=True)]
    )
    totals = [sum(steps.step_ns(load) for load in loads) for steps in (found, planted)]
    assert totals[0] == pytest.approx(totals[1], rel=0.03)
    assert found.weights_ns[3] == pytest.approx(planted.weights_ns[3], rel=0.05)


def test_whole_prompts_do_not_tell_tokens_from_context() -> None:
    loads = [load_of(np.zeros(1, np.int32), np.array([n], np.int32), 1) for n in range(30, 90)]
    found = fit([StepSample(2_000_000 + 1000 * load.num_prefill_tokens, load) for load in loads])
    assert (found.weights_ns[3], found.weights_ns[5]) == (pytest.approx(1000), 0)


def test_a_fit_of_decodes_only_leaves_the_rest_out() -> None:
    loads = [StepLoad(n, 0, 0, 50 * n + 7 * n * n, 0, 0, n) for n in range(1, 30)]
    found = fit([StepSample(1_000_000 + 3 * load.context_tokens, load) for load in loads])
    assert found.weights_ns == pytest.approx((1e6, 0, 0, 0, 3, 0, 0), rel=1e-3, abs=1e-2)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), others=st.lists(st.floats(0, 2), min_size=7, max_size=7))
def test_no_weights_fit_better(seed: int, others: list[float]) -> None:
    """Of any that are not negative, on times that the model does not explain."""
    draw = np.random.default_rng(seed)
    loads = random_loads(40)
    samples = [StepSample(int(draw.integers(1_000_000, 20_000_000)), load) for load in loads]
    parts = np.array([_parts(sample.load) for sample in samples], np.float64)
    durations = np.array([sample.duration_ns for sample in samples], np.float64)
    weights = _least_squares(parts / durations[:, None], np.ones(len(samples)))
    found = FittedSteps(
        tuple(weights.tolist()), 0, float(np.sqrt(np.mean((parts @ weights / durations - 1) ** 2))), 0.0
    )
    assert min(found.weights_ns) >= 0
    changed = FittedSteps(tuple(w * o for w, o in zip(found.weights_ns, others, strict=True)), 0, 0.0, 0.0)
    error = np.mean([(changed.step_ns(sample.load) / sample.duration_ns - 1) ** 2 for sample in samples])
    assert found.residual <= np.sqrt(error) * (1 + 1e-6)


def test_too_little_to_fit() -> None:
    with pytest.raises(ValueError, match="3 measured steps are too few"):
        fit([StepSample(1, StepLoad(1, 0, 0, 1, 0, 0, 1))] * 3)


class _Spy:
    """A scheduler that tells an observer what a replay would tell it."""

    def __init__(self, scheduler: Scheduler, observer: MeasuredSteps) -> None:
        self._scheduler, self._observer = scheduler, observer

    def step(self, now_ns: int, events: Sequence[Event]) -> StepPlan | None:
        self._observer.events(now_ns, events)
        plan = self._scheduler.step(now_ns, events)
        if plan is not None:
            self._observer.planned(plan)
        return plan

    def __getattr__(self, name: str) -> object:
        return getattr(self._scheduler, name)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_recorded_run_gives_its_step_times_back(
    make_limits: Callable[..., SchedulerLimits], monkeypatch: pytest.MonkeyPatch, depth: int
) -> None:
    """A simulated engine, with 300 us from a plan to its start and 200 us from a step's end to the scheduler, looked at
    as a replay looks at a journal."""
    truth = FittedSteps((3e6, 4e4, 9e4, 2.5e4, 40.0, 0.0, 0.0), 0, 0.0, 0.0)
    control = ControlTimes(schedule_ns=200_000, prepare_ns=100_000, report_ns=200_000, ingress_ns=1_000_000)
    trace = [TraceRequest(i * 11_000_000, 10 + 13 * i % 200, 3 + i % 30) for i in range(80)]
    simulation = Simulation(trace, make_limits(pipeline_depth=depth), truth, control, is_stepwise=True)
    observer = MeasuredSteps()
    monkeypatch.setattr(simulation, "scheduler", _Spy(simulation.scheduler, observer))
    simulation.run()
    found = fit(observer.samples())
    assert found.residual < 0.002
    assert found.weights_ns[:5] == pytest.approx(truth.weights_ns[:5], rel=0.02)
    measured = observer.control_times()
    assert measured.report_ns == 200_000
    assert measured.ingress_ns == pytest.approx(1_000_000, abs=300_000)  # some come while the scheduler is busy
    assert measured.schedule_ns == pytest.approx(300_000, abs=100_000)
