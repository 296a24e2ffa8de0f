"""Leaks planted in the scheduler: each is named by owner, step and event once nothing runs, repaired and counted."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

from callboard.kv_cache.block_pool import BlockPool
from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.steps import StepPlan
from callboard.mailbox.messages.transfers import BlocksLoaded
from callboard.scheduling import failures, intake, running, scheduler, update
from callboard.scheduling.events import WorkerAttached, WorkerGone
from callboard.scheduling.leak_ledger import Leak
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.request import Request
from callboard.scheduling.row_arrays import RowArrays
from callboard.scheduling.state import SchedulerState
from callboard.tests.scheduling.fake_rows import ints
from callboard.tests.scheduling.fake_worker import make_admit
from callboard.tests.scheduling.fake_worker import make_limits as usual_limits
from callboard.tests.scheduling.stage import Stage


def make_limits(**changes: object) -> SchedulerLimits:
    return usual_limits(**({"pipeline_depth": 1, "block_size": 4, "num_blocks": 16, "prefix_caching": False} | changes))


def ask(name: str, num_tokens: int, max_tokens: int, **changes: object) -> Admit:
    return make_admit(
        name, [1 + index % 5 for index in range(num_tokens)], max_tokens=max_tokens, ignore_eos=True, **changes
    )


def keeps_a_block(patch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
    """Within this function of the scheduler the last block of a list that is freed is forgotten."""
    function, free = getattr(module, name), BlockPool.free
    depth = 0

    def faulty(*args: object) -> object:
        nonlocal depth
        depth += 1
        try:
            return function(*args)
        finally:
            depth -= 1

    def frees_too_little(pool: BlockPool, blocks: list[int]) -> None:
        free(pool, blocks[:-1] if depth else blocks)

    patch.setattr(module, name, faulty)
    patch.setattr(BlockPool, "free", frees_too_little)


def grows_without_noting(patch: pytest.MonkeyPatch) -> None:
    """A running request that gets blocks is not told of the last one."""
    give_blocks = running._give_blocks

    def faulty(state: SchedulerState, plan: object, rows: object, num_blocks: object, has_drafts: object) -> None:
        give_blocks(state, plan, rows, num_blocks, has_drafts)  # type: ignore[arg-type]
        for request in state.running.values():
            request.block_ids.pop()

    patch.setattr(running, "_give_blocks", faulty)


def placed(stage: Stage, name: str, index: int = 0) -> tuple[StepPlan, int, list[int]]:
    """The plan that gave a request its row for the time `index`, its run, and its blocks then."""
    found = [(plan, new) for plan in stage.planned for new in plan.new_rows if new.request_id == name]
    plan, new = found[index]
    return plan, new.run, ints(new.block_ids)


def play(stage: Stage, now_ns: int) -> None:
    """Until nothing is in flight."""
    while stage.plans:
        now_ns += 1000
        stage.end_step(now_ns)


# Each plays a leak and says how it must be told. ---------------------------------------------------------------------


def at_an_abort(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    keeps_a_block(patch, intake, "abort")
    stage = Stage(make_limits())
    stage.at(1000, ask("other", 4, 2))
    stage.end_step(2000, ask("v", 7, 9))
    stage.at(2500, Abort("v", 1, "the client left"))
    play(stage, 3000)
    plan, run, blocks = placed(stage, "v")
    assert plan.step == 1
    return stage, Leak("block", blocks[-1], ("v", 0), run, 1, "admission", "aborted")


def at_a_preemption(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    keeps_a_block(patch, running, "preempt_one")
    stage = Stage(make_limits(num_blocks=6))
    stage.at(1000, ask("a", 8, 3), ask("v", 12, 3))
    play(stage, 1000)
    _, run, blocks = placed(stage, "v")
    assert stage.scheduler.statistics().num_preemptions == 1
    return stage, Leak("block", blocks[-1], ("v", 0), run, 0, "admission", "preempted (blocks)")


def at_an_end_by_length(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    keeps_a_block(patch, update, "_end")
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 3, 3))
    play(stage, 1000)
    _, run, _ = placed(stage, "v")
    grown = [(plan.step, ints(plan.block_ids)) for plan in stage.planned if plan.block_ids]
    assert grown == [(2, [1])]
    return stage, Leak("block", 1, ("v", 0), run, 2, "growth", "length_capped")


def of_a_block_for_growth(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    grows_without_noting(patch)
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 4, 2))
    play(stage, 1000)
    _, run, _ = placed(stage, "v")
    ((step, (block,)),) = [(plan.step, ints(plan.block_ids)) for plan in stage.planned if plan.block_ids]
    return stage, Leak("block", block, ("v", 0), run, step, "growth", "length_capped")


def of_a_block_for_drafts(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    grows_without_noting(patch)
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 3, 4))
    _, run, _ = placed(stage, "v")
    stage.end_step(2000, Drafts([run], [4], [[1, 2]]))
    stage.at(2500, Abort("v", 1, "enough"))
    play(stage, 3000)
    ((step, (block,)),) = [(plan.step, ints(plan.block_ids)) for plan in stage.planned if plan.block_ids]
    return stage, Leak("block", block, ("v", 0), run, step, "drafts", "aborted")


def of_a_shared_block(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    keeps_a_block(patch, intake, "abort")
    stage = Stage(make_limits(prefix_caching=True))
    stage.at(1000, ask("owner", 5, 4))
    stage.end_step(2000, ask("v", 5, 4))
    stage.at(2500, Abort("owner", 1, "the client left"))
    stage.end_step(3000)
    play(stage, 3000)
    _, run, blocks = placed(stage, "owner")
    return stage, Leak("block", blocks[-1], ("owner", 0), run, 0, "admission", "aborted")


def of_a_prefix_that_another_has_too(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    stage = Stage(make_limits(prefix_caching=True))
    stage.at(1000, ask("owner", 5, 4))
    stage.end_step(2000, ask("v", 5, 2))
    plan, run, blocks = placed(stage, "v")
    shared = placed(stage, "owner")[2][0]
    assert blocks[0] == shared
    stage.scheduler._state.running[run].block_ids.remove(shared)
    play(stage, 2000)
    return stage, Leak("block", shared, ("v", 0), run, plan.step, "shared_prefix", "length_capped")


def of_a_transfer_that_nobody_waits_for(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    keeps_a_block(patch, scheduler, "blocks_loaded")
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 9, 1, num_remote_tokens=8))
    (load,) = stage.loads
    stage.at(2000, Abort("v", 1, "the client left"))
    stage.at(3000, BlocksLoaded(load.transfer, 8))
    return stage, Leak("block", load.block_ids[-1], ("v", 0), None, 0, "transfer", "aborted")


def at_a_failed_step(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    keeps_a_block(patch, failures, "fail_step")
    stage = Stage(make_limits())
    stage.at(1000, ask("a", 4, 2))
    stage.end_step(2000)
    stage.at(2500, Abort("a", 1, "the client left"))
    stage.end_step(2600, ask("v", 4, 2))
    stage.fail_step(3000)
    play(stage, 3000)
    plan, run, blocks = placed(stage, "v")
    return stage, Leak("block", blocks[-1], ("v", 0), run, plan.step, "admission", "preempted (step_failed)")


def at_a_workers_death(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    keeps_a_block(patch, failures, "lose_worker")
    stage = Stage(make_limits())
    stage.at(1000, ask("v", 6, 2))
    stage.at(1500, WorkerGone())
    stage.plans.clear()
    stage.at(2000, WorkerAttached(2))
    play(stage, 2000)
    _, run, blocks = placed(stage, "v")
    return stage, Leak("block", blocks[-1], ("v", 0), run, 0, "admission", "preempted (worker)")


def of_a_row(patch: pytest.MonkeyPatch) -> tuple[Stage, Leak]:
    give_back = RowArrays.give_back
    kept: list[int] = []

    def faulty(rows: RowArrays[Request], row: int) -> None:
        if not kept:
            kept.append(row)
            rows.requests[row] = None
            rows.run[row] = 0
            rows._in_order = rows._requests_in_order = None
            return
        give_back(rows, row)

    patch.setattr(RowArrays, "give_back", faulty)
    stage = Stage(make_limits())
    stage.at(1000, ask("first", 4, 5))
    stage.end_step(2000, ask("v", 4, 1))
    play(stage, 2000)
    plan, run, _ = placed(stage, "v")
    assert (plan.step, kept) == (1, [1])
    return stage, Leak("row", 1, ("v", 0), run, 1, "admission", "length_capped")


LEAKS = [
    at_an_abort,
    at_a_preemption,
    at_an_end_by_length,
    of_a_block_for_growth,
    of_a_block_for_drafts,
    of_a_shared_block,
    of_a_prefix_that_another_has_too,
    of_a_transfer_that_nobody_waits_for,
    at_a_failed_step,
    at_a_workers_death,
    of_a_row,
]


@pytest.mark.parametrize("plant", LEAKS)
def test_a_planted_leak_is_named_repaired_and_counted(
    plant: Callable[[pytest.MonkeyPatch], tuple[Stage, Leak]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stage, expected = plant(patch)
    statistics = stage.scheduler.statistics()
    assert statistics.num_running == statistics.num_waiting == statistics.num_leaks == 0
    assert stage.scheduler.check_integrity() == [expected]
    statistics = stage.scheduler.statistics()
    assert (statistics.num_leaks, statistics.num_free_blocks) == (1, statistics.num_blocks)
    assert stage.scheduler.check_integrity() == []
    stage.at(100_000, ask("next", 4 * statistics.num_blocks - 4, 3))
    play(stage, 100_000)
    assert stage.scheduler.statistics().num_finished == statistics.num_finished + 1
    assert stage.scheduler.check_integrity() == []
