"""Step times fitted from a journal, and the run that other limits would have given."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from callboard.cli.main import app
from callboard.cli.replay import changed_limits
from callboard.errors import ConfigError
from callboard.journal.arrivals import Arrivals
from callboard.journal.frames import PREFIX, Frames, frame
from callboard.journal.outcomes import Outcome, Outcomes, latencies_of
from callboard.journal.replay import Replay
from callboard.journal.step_model import StepModel, StepTimes
from callboard.journal.what_if import what_if
from callboard.journal.writer import JournalWriter
from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.journal.recording import RecordedScheduler, opened
from callboard.tests.scheduling.fake_worker import make_admit, make_limits

A_NS, TOKEN_NS, ROW_NS, REPORT_NS = 5_000_000, 20_000, 100_000, 50_000


def timed_run(limits: SchedulerLimits, timed: list[tuple[int, Event]], stem: Path) -> RecordedScheduler:
    """A worker with known times: a + b * tokens + c * rows, at once after the plan; the scheduler hears of it later."""
    scheduler = RecordedScheduler(limits, JournalWriter(stem, 1 << 24, limits, 0))
    waiting, results = deque(timed), deque[tuple[int, StepResult]]()
    free_ns = now_ns = 0
    while waiting or results:
        now_ns = min(queue[0][0] for queue in (waiting, results) if queue)
        events: list[Event] = []
        while waiting and waiting[0][0] <= now_ns:
            events.append(waiting.popleft()[1])
        while results and results[0][0] <= now_ns:
            events.append(results.popleft()[1])
        plan = scheduler.step(now_ns, events)
        while plan is not None:
            result = run_plan(plan, max(now_ns, free_ns))
            free_ns = result.end_ns
            results.append((free_ns + REPORT_NS, result))
            plan = scheduler.step(now_ns, ())
        scheduler.collect()
    scheduler.writer.close()
    return scheduler


def run_plan(plan: StepPlan, start_ns: int) -> StepResult:
    counts, starts = np.frombuffer(plan.num_tokens, "<i4"), np.frombuffer(plan.starts, "<i4")
    samples, runs = np.frombuffer(plan.samples, np.bool_), np.frombuffer(plan.runs, "<i8")
    run_ns = A_NS + TOKEN_NS * int(counts.sum()) + ROW_NS * len(counts)
    ends = (starts + counts)[samples].astype("<i4")
    tokens = (1 + (runs[samples] * 31 + ends) % 7).astype("<i4")
    return StepResult(
        plan.epoch, plan.step, runs[samples].tobytes(), ends.tobytes(), tokens.tobytes(), start_ns, start_ns + run_ns
    )


def arrivals(count: int, **changes: object) -> list[tuple[int, Event]]:
    timed: list[tuple[int, Event]] = [(0, WorkerAttached(1))]
    for number in range(count):
        at_ns = 1_000_000 + 7_000_000 * number
        admit = make_admit(f"r{number}", [number % 5 + 1] * (8 + number % 30), arrival_ns=at_ns, **changes)
        timed.append((at_ns, admit))
    return timed


class Followed:
    """A replay of a journal and all that is learnt from it."""

    def __init__(self, stem: Path) -> None:
        self.outcomes, self.arrivals, self.times = Outcomes(), Arrivals(), StepTimes()
        self.replay = Replay(observers=(self.outcomes, self.arrivals, self.times))
        self.replay.run(opened(stem))
        assert self.replay.difference is None
        model = self.times.fit()
        assert model is not None
        self.model: StepModel = model


def test_the_fit_finds_the_times_of_the_worker(tmp_path: Path) -> None:
    timed_run(make_limits(max_num_batched_tokens=64), arrivals(60, max_tokens=20), tmp_path / "j")
    model = Followed(tmp_path / "j").model
    assert model.coefficients == pytest.approx((A_NS, TOKEN_NS, ROW_NS, 0), rel=1e-3, abs=1)
    assert (model.report_ns, model.gap_ns) == (REPORT_NS, 0)
    assert model.error < 1e-6


def test_with_the_same_limits_everything_happens_again(tmp_path: Path) -> None:
    limits = make_limits(max_num_seqs=4, num_blocks=12, max_num_batched_tokens=64)
    scheduler = timed_run(limits, arrivals(40, max_tokens=20), tmp_path / "j")
    assert scheduler.statistics().num_preemptions > 0
    followed = Followed(tmp_path / "j")
    run = what_if(limits, followed.arrivals.timed, followed.arrivals.stops, followed.outcomes, followed.model)
    assert run.num_steps == len(scheduler.plans)
    assert run.scheduler.statistics().num_preemptions == scheduler.statistics().num_preemptions
    for key, outcome in followed.outcomes.of.items():
        assert run.outcomes.of[key].token_ids == outcome.token_ids
        assert run.outcomes.of[key].reason == outcome.reason
        assert run.outcomes.of[key].token_ns == pytest.approx(outcome.token_ns, abs=100_000)


def test_more_rows_shorten_the_wait_as_a_run_with_them_does(tmp_path: Path) -> None:
    """Against the truth: the same requests recorded with the other limits."""
    few, many = make_limits(max_num_seqs=2), make_limits(max_num_seqs=16)
    timed = arrivals(40, max_tokens=20, ignore_eos=True)
    timed_run(few, timed, tmp_path / "few")
    timed_run(many, timed, tmp_path / "many")
    followed = Followed(tmp_path / "few")
    run = what_if(many, followed.arrivals.timed, followed.arrivals.stops, followed.outcomes, followed.model)
    truth = latencies_of(Followed(tmp_path / "many").outcomes.of.values())
    found = latencies_of(run.outcomes.of.values())
    assert found.ttft_ms == pytest.approx(truth.ttft_ms, rel=0.02)
    assert found.itl_ms == pytest.approx(truth.itl_ms, rel=0.02)
    assert found.num_finished == truth.num_finished == 40


def test_stop_strings_and_aborts_happen_again(tmp_path: Path) -> None:
    timed = arrivals(3, max_tokens=50, ignore_eos=True)
    timed += [(60_000_000, Stop("r0", 0, 1, 4)), (80_000_000, Abort("r1", 1, "client"))]
    limits = make_limits()
    timed_run(limits, timed, tmp_path / "j")
    followed = Followed(tmp_path / "j")
    run = what_if(limits, followed.arrivals.timed, followed.arrivals.stops, followed.outcomes, followed.model)
    assert len(run.outcomes.of["r0", 0].token_ids) == 5
    assert 5 < len(run.outcomes.of["r1", 0].token_ids) < 50
    assert (run.outcomes.of["r2", 0].reason, len(run.outcomes.of["r2", 0].token_ids)) == ("length", 50)


def test_latencies_are_those_of_the_definition() -> None:
    """E2E = 0.3 + 299 * 0.03 = 9.27 s; ITL has N - 1 samples."""
    admit: Admit = make_admit("r", [1])
    token_ns = [300_000_000 + 30_000_000 * index for index in range(300)]
    latencies = latencies_of([Outcome(admit, 0, [1] * 300, token_ns, "length", token_ns[-1])])
    assert latencies.ttft_ms == (300, 300, 300)
    assert latencies.itl_ms == (30, 30, 30)
    assert latencies.e2e_ms == pytest.approx((9270, 9270, 9270))
    assert all(np.isnan(latencies_of([]).ttft_ms))


# The command


def replay_command(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["replay", *args])
    return result.exit_code, result.output + (str(result.exception) if result.exception is not None else "")


def test_the_command_says_that_every_plan_is_identical(tmp_path: Path) -> None:
    scheduler = timed_run(make_limits(), arrivals(5), tmp_path / "j")
    status, output = replay_command(str(tmp_path / "j.000001"))
    assert status == 0
    assert f"{len(scheduler.plans)} steps" in output and "5 requests" in output
    assert "hash " in output and "identical: every plan is what it was" in output


def test_the_command_prints_recorded_and_what_if_side_by_side(tmp_path: Path) -> None:
    timed_run(make_limits(max_num_seqs=2), arrivals(30), tmp_path / "j")
    status, output = replay_command(str(tmp_path / "j.000001"), "--policy", "priority", "--set", "max_num_seqs=16")
    assert status == 0
    lines = {line[:22].strip(): line[22:].split() for line in output.splitlines()}
    assert lines["requests"] == ["30", "30", "30"]
    assert "recorded    modelled  policy=priority, max_num_seqs=16" in output
    recorded, modelled, changed = map(float, lines["TTFT p90 ms"])
    assert recorded == pytest.approx(modelled, rel=0.05) and changed < recorded / 2
    assert "fitted from" in output


def test_the_command_shows_a_plan_that_differs(tmp_path: Path) -> None:
    """A journal whose limits were changed: the plans of the replay are others."""
    timed_run(make_limits(max_num_seqs=8, max_num_batched_tokens=64), arrivals(5), tmp_path / "j")
    header, *rest = Frames(tmp_path / "j.000001")
    limits = msgspec.msgpack.encode(make_limits(max_num_seqs=8, max_num_batched_tokens=8))
    changed = [msgspec.structs.replace(header, limits=limits), *rest]
    (tmp_path / "j.000001").write_bytes(PREFIX + b"".join(map(frame, changed)))
    status, output = replay_command(str(tmp_path / "j.000001"))
    assert status == 1
    assert "DIFFERENT at step " in output and "recorded: " in output and "replayed: step " in output
    assert "identical" not in output


def test_a_limit_is_read_as_its_type_and_a_wrong_one_is_told() -> None:
    limits = make_limits()
    changed = changed_limits(limits, ["prefix_caching=false", "watermark=0.05", "max_plan_tokens=none"])
    assert (changed.prefix_caching, changed.watermark, changed.max_plan_tokens) == (False, 0.05, None)
    for change, says in (
        ("max_num_sequ=3", "did you mean max_num_seqs"),
        ("policy=best", "Invalid enum value 'best'"),
        ("num_blocks=0", "num_blocks is 0, it must be at least 1"),
        ("num_blocks", "write --set key=value"),
    ):
        with pytest.raises(ConfigError, match=says):
            changed_limits(limits, [change])
