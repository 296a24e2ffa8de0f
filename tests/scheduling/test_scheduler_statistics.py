"""What the scheduler counts of time and tokens, from runs whose times are known."""

from __future__ import annotations

import msgspec

from callboard.scheduling.events import WorkerAttached
from callboard.scheduling.scheduler import Scheduler
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.shm_queue.progress import NUM_STATISTICS
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import FakeWorker, make_admit, make_limits


def test_queue_and_prefill_times_are_sums_over_requests() -> None:
    """One row, prompts of two chunks. r1 comes at 100 and takes the row at 100, r2 comes at 110."""
    limits = make_limits(max_num_seqs=1, pipeline_depth=1, max_num_batched_tokens=4)
    scheduler = Scheduler(limits)
    admits = [make_admit(f"r{n}", [n] * 6, max_tokens=2, ignore_eos=True) for n in (1, 2)]
    worker = FakeWorker(limits, {(admit.request_id, 0): admit for admit in admits}, 1)
    plan = scheduler.step(100, [WorkerAttached(1), admits[0]])
    scheduler.step(110, [admits[1]])
    for now_ns in (200, 300, 400):  # r1: a chunk, its first token at 300, its end
        assert plan is not None
        plan = scheduler.step(now_ns, [worker.work(msgspec.msgpack.encode(plan), now_ns)])
    statistics = scheduler.statistics()
    assert (statistics.num_admitted, statistics.queue_time_ns) == (2, (100 - 100) + (400 - 110))
    assert (statistics.num_prefilled, statistics.prefill_time_ns) == (1, 300 - 100)
    for now_ns in (500, 650, 700):
        assert plan is not None
        plan = scheduler.step(now_ns, [worker.work(msgspec.msgpack.encode(plan), now_ns)])
    statistics = scheduler.statistics()
    assert (statistics.num_admitted, statistics.queue_time_ns) == (2, 290)
    assert (statistics.num_prefilled, statistics.prefill_time_ns) == (2, 200 + (650 - 400))
    assert statistics.num_scheduled_tokens == 2 * (6 + 1)


def test_a_preempted_request_is_counted_once() -> None:
    engine = Engine(make_limits(num_blocks=4, block_size=4, pipeline_depth=1, prefix_caching=False))
    engine.admit(*(make_admit(f"r{n}", [n] * 7, max_tokens=6, ignore_eos=True) for n in (1, 2)))
    engine.run()
    statistics = engine.scheduler.statistics()
    assert statistics.num_preemptions >= 1
    assert (statistics.num_admitted, statistics.num_prefilled) == (2, 2)
    computed = sum(int(count) for plan in engine.planned for count in memoryview(plan.num_tokens).cast("i"))
    assert statistics.num_scheduled_tokens == computed > 2 * (7 + 5), "the tokens of the victim twice"


def test_a_request_that_never_ran_is_not_counted_as_admitted() -> None:
    engine = Engine(make_limits(num_blocks=2, block_size=4), is_attached=False)
    engine.admit(make_admit("a", [1] * 100), make_admit("b", [1]))
    assert engine.scheduler.statistics().num_admitted == 0


def test_the_statistics_have_room_on_the_progress_page() -> None:
    values = msgspec.structs.astuple(SchedulerStatistics())
    assert sum(len(value) if isinstance(value, tuple) else 1 for value in values) <= NUM_STATISTICS
