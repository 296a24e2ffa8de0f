"""Steps in flight: results in order, what a failure voids, and the end of an epoch with steps on the device."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque

import msgspec
import pytest

from callboard.actors.step_pipeline import StepPipeline
from callboard.actors.worker import EpochEnds, WorkerActor
from callboard.errors import DeviceFault, ProtocolViolation
from callboard.execution.pending_step import EndedStep, HeldStep, PendingStep
from callboard.mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from callboard.shm_queue import (
    BoardLayout,
    BoardReader,
    BoardWriter,
    ProgressPage,
    close_board,
    create_board,
    create_progress_page,
)


def plan_of(step: int, *, is_fresh: bool = False, epoch: int = 1) -> StepPlan:
    return StepPlan(epoch, step, 0, [], b"", b"", b"", b"", b"", b"", is_fresh=is_fresh)


class FakeStep:
    """Ends when the test says so."""

    def __init__(self, runner: FakeRunner, plan: StepPlan) -> None:
        self.runner, self.plan = runner, plan

    def is_done(self) -> bool:
        return self.plan.step in self.runner.ended

    def result(self) -> StepResult:
        with self.runner.change:
            assert self.runner.change.wait_for(self.is_done, 10.0)
        self.runner.log.append(f"result {self.plan.step}")
        if (error := self.runner.fails_on_device.get(self.plan.step)) is not None:
            raise error
        return StepResult(self.plan.epoch, self.plan.step, b"", b"", b"", 0, 1)


class FakeRunner:
    """A device that goes on while the host does something else."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.ended: set[int] = set()
        self.change = threading.Condition()
        self.fails_at_launch: dict[int, Exception] = {}
        self.fails_on_device: dict[int, Exception] = {}
        self.held: set[int] = set()
        """Steps with constrained rows."""
        self.masked: set[int] = set()
        """Those of them whose masks are there."""
        self.fails_to_sample: dict[int, Exception] = {}
        self.idle_work = 0

    def end(self, *steps: int) -> None:
        with self.change:
            self.ended.update(steps)
            self.change.notify_all()

    def write_masks(self, step: int) -> None:
        self.masked.add(step)

    def launch(self, plan: StepPlan) -> PendingStep:
        self.log.append(f"launch {plan.step}")
        if (error := self.fails_at_launch.get(plan.step)) is not None:
            raise error
        step = FakeStep(self, plan)
        return HeldStep(lambda: self._go_on(step)) if plan.step in self.held else step

    def _go_on(self, step: FakeStep) -> FakeStep | None:
        number = step.plan.step
        if number not in self.masked:
            return None
        self.log.append(f"sample {number}")
        if (error := self.fails_to_sample.get(number)) is not None:
            raise error
        return step

    def warm_up(self) -> None:
        self.log.append("warm")

    def use_idle_time(self) -> bool:
        self.idle_work -= 1
        return self.idle_work >= 0

    def clear(self) -> None:
        self.log.append("clear")


class ComputingRunner(FakeRunner):
    """Its steps are computed while they are launched, those that are held but for the sampling."""

    def launch(self, plan: StepPlan) -> PendingStep:
        self.log.append(f"launch {plan.step}")
        with self.change:
            assert self.change.wait_for(lambda: plan.step in self.ended, 60.0)
        result = FakeStep(self, plan).result()
        if plan.step not in self.held:
            return EndedStep(result)
        return HeldStep(lambda: EndedStep(result) if plan.step in self.masked else None)


@pytest.fixture
def runner() -> FakeRunner:
    return FakeRunner()


def outcomes(pipeline: StepPipeline) -> list[tuple[int, StepOutcome]]:
    results = [pipeline.collect() for _ in range(pipeline.num_pending)]
    return [(result.step, result.outcome) for result in results]


def test_a_step_is_launched_before_the_one_before_it_has_ended(runner):
    pipeline = StepPipeline(runner)
    pipeline.launch(plan_of(1))
    assert not pipeline.is_oldest_done()
    pipeline.launch(plan_of(2))
    runner.end(2)
    assert not pipeline.is_oldest_done()
    runner.end(1, 2)
    assert pipeline.is_oldest_done()
    assert outcomes(pipeline) == [(1, StepOutcome.DONE), (2, StepOutcome.DONE)]
    assert runner.log == ["launch 1", "launch 2", "result 1", "result 2"]


def test_a_step_that_fails_on_the_device_voids_those_launched_behind_it(runner, capfd):
    pipeline = StepPipeline(runner)
    runner.fails_on_device = {2: ValueError("no"), 3: ValueError("because of 2")}
    runner.end(1, 2, 3, 5)
    for step in (1, 2, 3):
        pipeline.launch(plan_of(step))
    assert pipeline.collect().outcome is StepOutcome.DONE
    failed = pipeline.collect()
    assert (failed.step, failed.outcome, failed.error) == (2, StepOutcome.FAILED, "ValueError: no")
    assert "result 3" in runner.log, "the device is done with what was launched before anything else is said"
    pipeline.launch(plan_of(4))
    assert outcomes(pipeline) == [(3, StepOutcome.VOID), (4, StepOutcome.VOID)]
    assert "launch 4" not in runner.log
    assert "ValueError: no" in capfd.readouterr().err
    pipeline.launch(plan_of(5, is_fresh=True))
    assert runner.log[-2:] == ["clear", "launch 5"]
    assert outcomes(pipeline) == [(5, StepOutcome.DONE)]


def test_a_step_that_fails_at_its_launch_leaves_those_before_it_alone(runner, capfd):
    pipeline = StepPipeline(runner)
    runner.fails_at_launch = {2: MemoryError()}
    runner.end(1)
    for step in (1, 2, 3):
        pipeline.launch(plan_of(step))
    assert outcomes(pipeline) == [(1, StepOutcome.DONE), (2, StepOutcome.FAILED), (3, StepOutcome.VOID)]


@pytest.mark.parametrize("where", ["fails_at_launch", "fails_on_device"])
def test_a_fault_of_the_actor_is_raised(runner, where):
    pipeline = StepPipeline(runner)
    getattr(runner, where)[1] = DeviceFault("gone")
    runner.end(1)
    with pytest.raises(DeviceFault, match="gone"):
        pipeline.launch(plan_of(1))
        pipeline.collect()


def test_a_fresh_plan_in_front_of_results_is_a_violation(runner):
    pipeline = StepPipeline(runner)
    pipeline.launch(plan_of(1))
    with pytest.raises(ProtocolViolation, match="1 steps are in flight"):
        pipeline.launch(plan_of(2, is_fresh=True))


def test_a_held_step_goes_on_when_its_masks_are_there(runner):
    pipeline = StepPipeline(runner)
    runner.held = {1, 2}
    runner.end(1)
    pipeline.launch(plan_of(1))
    assert pipeline.is_held and not pipeline.is_oldest_done()
    assert not pipeline.go_on() and pipeline.is_held
    runner.write_masks(1)
    assert pipeline.go_on() and not pipeline.is_held
    assert pipeline.is_oldest_done()
    pipeline.launch(plan_of(2))
    assert pipeline.is_held
    assert pipeline.collect().step == 1
    runner.write_masks(2)
    runner.end(2)
    assert outcomes(pipeline) == [(2, StepOutcome.DONE)], "a result is waited for whatever has yet to be launched"
    assert runner.log == ["launch 1", "sample 1", "launch 2", "result 1", "sample 2", "result 2"]


def test_a_held_step_that_fails_when_it_goes_on(runner, capfd):
    pipeline = StepPipeline(runner)
    runner.held = runner.masked = {1}
    runner.fails_to_sample = {1: ValueError("no")}
    pipeline.launch(plan_of(1))
    assert pipeline.go_on() and not pipeline.is_held
    pipeline.launch(plan_of(2))
    assert outcomes(pipeline) == [(1, StepOutcome.FAILED), (2, StepOutcome.VOID)]
    runner.fails_to_sample = {1: DeviceFault("gone")}
    pipeline.launch(plan_of(1, is_fresh=True))
    with pytest.raises(DeviceFault, match="gone"):
        pipeline.go_on()


def test_a_failure_voids_a_held_step_behind_it(runner, capfd):
    pipeline = StepPipeline(runner)
    runner.held = runner.masked = {2}
    runner.fails_on_device = {1: ValueError("no")}
    runner.end(1, 2)
    pipeline.launch(plan_of(1))
    pipeline.launch(plan_of(2))
    assert pipeline.collect().outcome is StepOutcome.FAILED
    assert not pipeline.is_held
    assert "result 2" in runner.log
    assert outcomes(pipeline) == [(2, StepOutcome.VOID)]


class Rig:
    """A worker over real boards; the test is the scheduler."""

    def __init__(self, runner: FakeRunner, depth: int) -> None:
        self.runner, self.depth = runner, depth
        self.page = create_progress_page(1)
        self.stop_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.worker = WorkerActor(
            "worker", lambda: runner, ProgressPage(self.page, 1).line(0), self.stop_fd, pipeline_depth=depth
        )
        self.plans, self.results = self._boards(1)

    def _boards(self, epoch: int) -> tuple[BoardWriter, BoardReader]:
        call, result = (
            BoardLayout(name, epoch, num_slots=self.depth + 2, slot_bytes=4096, num_readers=1)
            for name in ("call", "result")
        )
        fds = {**create_board(call), **create_board(result)}
        ends = EpochEnds(epoch, BoardReader(call, fds, 0, wake_fd=self.stop_fd), BoardWriter(result, fds))
        plans, results = BoardWriter(call, fds), BoardReader(result, fds, 0)
        close_board(fds)
        self.worker.attach(ends)
        return plans, results

    def publish(self, plan: StepPlan) -> None:
        self.plans.publish(msgspec.msgpack.encode(plan), 10.0, lambda _: "")

    async def receive(self) -> StepResult:
        record = await asyncio.to_thread(self.results.receive, 10.0)
        return msgspec.msgpack.decode(record, type=StepResult)

    async def wait_launched(self, step: int) -> None:
        async with asyncio.timeout(10):
            while f"launch {step}" not in self.runner.log:
                await asyncio.sleep(0.001)

    def close(self) -> None:
        self.worker.close()
        self.plans.detach()
        self.results.detach()
        os.close(self.stop_fd)
        os.close(self.page)


@pytest.fixture
async def rig(runner):
    rigs = deque()

    def make(depth: int) -> Rig:
        rigs.append(Rig(runner, depth))
        return rigs[-1]

    yield make
    for each in rigs:
        each.close()


async def test_the_worker_launches_the_next_plan_while_a_step_runs(runner, rig):
    rig = rig(2)
    await rig.worker.start()
    rig.publish(plan_of(1))
    await rig.wait_launched(1)
    rig.publish(plan_of(2))
    await rig.wait_launched(2)
    runner.end(1, 2)
    first, second = await rig.receive(), await rig.receive()
    assert [(first.step, first.num_plans_waiting), (second.step, second.num_plans_waiting)] == [(1, 1), (2, 0)]
    rig.plans.close_stream()


@pytest.mark.parametrize("held", [set(), {1}, {1, 2}])
async def test_a_result_does_not_wait_for_the_step_behind_it_where_that_is_computed_by_the_worker(held):
    runner = ComputingRunner()
    runner.held = runner.masked = held
    rig = Rig(runner, 2)
    try:
        await rig.worker.start()
        for step in (1, 2):
            rig.publish(plan_of(step))
        runner.end(1)
        result = await rig.receive()
        assert (result.step, result.num_plans_waiting) == (1, 1)
        await rig.wait_launched(2)
        runner.end(2)
        assert (await rig.receive()).step == 2
    finally:
        runner.end(1, 2)
        rig.close()


async def test_a_board_that_ends_with_steps_on_the_device(runner, rig):
    rig = rig(2)
    await rig.worker.start()
    for step in (1, 2):
        rig.publish(plan_of(step))
        await rig.wait_launched(step)
    rig.plans.close_stream()
    runner.end(1, 2)
    assert [(await rig.receive()).step for _ in range(2)] == [1, 2]
    async with asyncio.timeout(10):
        while "clear" not in runner.log:
            await asyncio.sleep(0.001)
    assert runner.log == ["warm", "launch 1", "launch 2", "result 1", "result 2", "clear"]


async def test_a_stop_waits_for_the_steps_on_the_device(runner, rig):
    rig = rig(3)
    await rig.worker.start()
    rig.publish(plan_of(1))
    await rig.wait_launched(1)
    rig.worker.stop()
    runner.end(1)
    assert (await rig.receive()).step == 1
    await rig.worker.run()
    assert runner.log[-1] == "clear"


async def test_idle_time_is_used_before_the_worker_waits(runner, rig):
    runner.idle_work = 3
    rig = rig(2)
    await rig.worker.start()
    rig.publish(plan_of(1))
    await rig.wait_launched(1)
    runner.end(1)
    await rig.receive()
    async with asyncio.timeout(10):
        while runner.idle_work >= 0:
            await asyncio.sleep(0.001)


async def test_a_held_step_waits_for_the_results_before_it_and_nothing_is_launched_behind_it(runner, rig):
    """Its masks come from whoever reads the result before; a later plan that is there already waits for it."""
    runner.held = {2}
    rig = rig(3)
    await rig.worker.start()
    for step in (1, 2):
        rig.publish(plan_of(step))
        await rig.wait_launched(step)
    rig.publish(plan_of(3))
    runner.end(1, 2, 3)
    assert (await rig.receive()).step == 1
    assert runner.log == ["warm", "launch 1", "launch 2", "result 1"]
    runner.write_masks(2)
    assert [(await rig.receive()).step for _ in range(2)] == [2, 3]
    assert runner.log[4:6] == ["sample 2", "launch 3"]
    rig.plans.close_stream()


async def test_a_board_that_ends_with_a_held_step(runner, rig):
    runner.held = runner.masked = {1}
    rig = rig(1)
    await rig.worker.start()
    runner.end(1)
    rig.publish(plan_of(1))
    assert (await rig.receive()).step == 1
    rig.plans.close_stream()
    async with asyncio.timeout(10):
        while "clear" not in runner.log:
            await asyncio.sleep(0.001)
