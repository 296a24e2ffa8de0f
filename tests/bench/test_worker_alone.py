"""A recorded plan stream read back, run alone, and the arithmetic of both sides."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from callboard.bench.plan_stream import RanStep, read_plan_stream
from callboard.bench.worker_alone import AloneRun, EngineLoad, Round, Side, compare, run_alone, summary
from callboard.errors import ConfigError
from callboard.execution.null_runner import NullRunner
from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.journal.recording import recorded_scheduler

LIMITS = SchedulerLimits(
    max_num_seqs=4,
    max_num_batched_tokens=24,
    long_prefill_token_threshold=0,
    pipeline_depth=1,
    watermark=0.0,
    max_queued_requests=16,
    max_queued_tokens=1000,
    num_blocks=32,
    block_size=4,
    prefix_caching=True,
    max_model_len=40,
)
NUM_REQUESTS, PROMPT_LEN, OUTPUT_LEN = 6, 7, 9


def null_runner() -> NullRunner:
    return NullRunner(
        visible_ids=np.arange(1, 50, dtype=np.int32),
        eos_token_id=None,
        num_blocks=LIMITS.num_blocks,
        block_size=LIMITS.block_size,
        max_num_seqs=LIMITS.max_num_seqs,
        max_model_len=LIMITS.max_model_len,
    )


def record(stem: Path, *, fails: bool = False) -> list[RanStep]:
    """A scheduler and a null device serve some requests, more than there are rows; what they did.

    With `fails` the second step does, and nothing follows.
    """
    scheduler = recorded_scheduler(LIMITS, stem, 1 << 20)
    sampling = SamplingParams(seed=1, max_tokens=OUTPUT_LEN)
    events: list[Event] = [WorkerAttached(1)]
    for number in range(NUM_REQUESTS):
        prompt = list(range(1 + number, 1 + number + PROMPT_LEN))
        events.append(Admit(f"r{number}", 0, 1, "tokenizer", prompt, sampling, (), 0))
    runner = null_runner()
    steps: list[RanStep] = []
    while (plan := scheduler.step(len(steps), events)) is not None:
        steps.append(RanStep(plan, runner.run(plan)))
        events = [steps[-1].result]
        while scheduler.collect().has_more:
            pass
        if fails and len(steps) == 2:
            break
    if fails:
        failed = StepResult(1, steps[-1].plan.step, b"", b"", b"", 0, 0, outcome=StepOutcome.FAILED, error="planted")
        scheduler.step(len(steps), [failed])
    scheduler.writer.close()
    return steps


def test_the_stream_has_every_step_in_order_and_gives_the_same_tokens_alone(tmp_path: Path) -> None:
    recorded = record(tmp_path / "journal")
    stream = read_plan_stream(tmp_path / "journal")
    assert stream.limits == LIMITS
    assert stream.steps == recorded
    assert sum(len(step.result.token_ids) // 4 for step in stream.steps) == NUM_REQUESTS * OUTPUT_LEN
    alone = run_alone(null_runner().run, stream.steps, begin_ns=3)
    assert len(alone.run_ns) == len(recorded)
    assert min(alone.run_ns) > 0
    assert alone.num_different == 0
    assert list(alone.cpu_s) == ["worker", "others"]


def test_other_tokens_are_counted(tmp_path: Path) -> None:
    record(tmp_path / "journal")
    first, *rest = read_plan_stream(tmp_path / "journal").steps
    other = msgspec.structs.replace(first, result=msgspec.structs.replace(first.result, token_ids=b""))
    assert run_alone(null_runner().run, [other, *rest], begin_ns=0).num_different == 1


def test_a_run_with_a_failed_step_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "journal", fails=True)
    with pytest.raises(ConfigError, match="failed"):
        read_plan_stream(tmp_path / "journal")


def test_without_a_journal_there_is_no_stream(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="first plans"):
        read_plan_stream(tmp_path / "journal")


def step_of(now_ns: int, num_tokens: list[int], start_ns: int, end_ns: int) -> RanStep:
    plan = StepPlan(1, now_ns, now_ns, [], b"", b"", b"", b"", np.array(num_tokens, "<i4").tobytes(), b"")
    return RanStep(plan, StepResult(1, now_ns, b"", b"", b"", start_ns, end_ns))


MS = 1_000_000
STEPS = [
    step_of(0, [1, 1], 0, 900 * MS),  # before the load
    step_of(1000 * MS, [5, 3], 1001 * MS, 1041 * MS),  # a prefill
    step_of(1001 * MS, [1, 1], 1042 * MS, 1052 * MS),
    step_of(1041 * MS, [1, 1], 1054 * MS, 1066 * MS),  # its plan was there when the one before ended: a gap of 2 ms
    step_of(1080 * MS, [1, 1], 1090 * MS, 1110 * MS),  # the worker waited for this one: no gap
    step_of(1100 * MS, [1], 1111 * MS, 1116 * MS),  # a stream has ended; 1 ms behind a full step
]
LOAD = EngineLoad(1000 * MS, 200.0, {"worker": 0.1, "control": 0.01, "others": 0.0})


def test_both_sides_are_of_the_same_steps_of_the_load() -> None:
    alone = AloneRun([500 * MS, 30 * MS, 8 * MS, 10 * MS, 11 * MS, 5 * MS], 0, {"worker": 0.05, "others": 0.02})
    one = compare(STEPS, LOAD, alone, concurrency=2)
    assert (one.num_steps, one.num_full) == (5, 3)
    assert (one.engine.full_ms, one.alone.full_ms) == (12.0, 10.0)
    assert (one.engine.total_s, one.alone.total_s) == pytest.approx((0.087, 0.064))
    assert one.full_ratio == pytest.approx(1.2)
    assert one.total_ratio == pytest.approx(87 / 64)
    assert one.gap_ms == 1.5
    assert one.cpu_ms == pytest.approx({"worker": 20.0, "control": 2.0, "others": 0.0})
    assert one.alone_cpu_ms == pytest.approx({"worker": 10.0, "others": 4.0})


def test_a_load_that_never_has_all_streams_is_refused() -> None:
    with pytest.raises(ValueError, match="all streams"):
        compare(STEPS, LOAD, AloneRun([MS] * len(STEPS), 0, {}), concurrency=3)


def test_the_summary_has_medians_and_spread() -> None:
    rounds = [
        Round(9, 8, Side(full, total), Side(10.0, 2.0), 0.1, 100.0, 0, {}, {})
        for full, total in ((10.2, 2.0), (10.1, 2.2), (10.9, 2.1))
    ]
    assert summary(rounds) == (
        "median of 3 rounds: engine over alone: full steps 1.020 (1.010 to 1.090), all steps 1.050 (1.000 to 1.100), "
        "a full step in the engine ms 10.20 (10.10 to 10.90), alone ms 10.00 (10.00 to 10.00)"
    )
