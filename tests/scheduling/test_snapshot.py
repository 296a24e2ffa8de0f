"""A scheduler restored from a snapshot is the same in every attribute, and goes on in the same way, byte for byte."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.scheduling.scheduler import Scheduler
from callboard.tests.scheduling.choices import DrawnChoices, SeededChoices
from callboard.tests.scheduling.deep_compare import attributes, differences
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.mutated import mutated
from callboard.tests.scheduling.restored_beside import RestoredBeside, parts
from callboard.tests.scheduling.snapshot_runs import run_life, run_world

WORLDS = (*range(12), 125, 196, 867)
"""Seeds; in the last ones there are drafts and transfers, and requests wait with what was loaded for them."""
NUM_LIVES = 25


@pytest.mark.slow
def test_a_restored_scheduler_goes_on_as_the_first(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(NUM_LIVES):
        run_life(seed, tmp_path, 60, seen)
    for seed in WORLDS:
        run_world(SeededChoices(seed), 80, seen)
    missing = {name for name, count in seen.items() if not count} - {"unsent prompts"}
    assert not missing, "no snapshot had these in it"


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_restored_schedulers_go_on_as_the_first_whatever_happens(data: st.DataObject) -> None:
    run_world(DrawnChoices(data), 20, Counter())


def busy_scheduler() -> Scheduler:
    engine = Engine(make_limits(num_blocks=9, block_size=4))
    engine.admit(*(make_admit(f"r{n}", [n] * 5, max_tokens=9) for n in range(1, 5)))
    for _ in range(3):
        engine.run_step()
    return engine.scheduler


def test_what_a_busy_tokenizer_was_not_told_yet_is_kept() -> None:
    engine = Engine(make_limits())
    beside = RestoredBeside(engine.scheduler)
    engine.scheduler = cast(Scheduler, beside)
    engine.blocked = {"tokenizer"}
    engine.admit(make_admit("r", [1, 2, 3, 4], prompt_logprobs=2, logprobs=1, max_tokens=3, ignore_eos=True))
    while engine.plans or engine.results:
        engine.run_step()
        beside.renew()
    assert beside.seen["unsent prompts"] and beside.seen["unsent ends"]
    engine.blocked.clear()
    engine.pump()
    engine.check_all_served()


def test_a_field_that_is_forgotten_is_found() -> None:
    scheduler = busy_scheduler()
    restored = Scheduler.restore(scheduler.limits, scheduler.snapshot())
    assert list(differences(parts(scheduler), parts(restored))) == []
    scheduler._state.pool.new_field = 1  # type: ignore[attr-defined]
    (found,) = differences(parts(scheduler), parts(restored))
    assert "pool attributes" in found


@pytest.mark.parametrize(
    ("module", "old"),
    [
        ("snapshot", "    restore_grammars(saved.grammars, state.grammars, requests)\n"),
        ("snapshot", "    put(saved.drain_rate, state.drain_rate)\n"),
        ("snapshot_requests", "    request._rows = None if request.row is None else rows\n"),
        ("snapshot_memory", "        pool._block_by_key[key] = block\n"),
        ("snapshot_ledgers", "    clock._sums = dict(zip(LINE_CAUSES, saved.sums, strict=True))\n"),
        ("snapshot_outbox", '    put(saved, outbox, without=("deltas",))\n'),
        ("snapshot_queues", "        line._heap = saved_line.heap\n"),
    ],
)
def test_a_line_that_is_forgotten_is_found(module: str, old: str) -> None:
    copies = mutated(f"callboard.scheduling.{module}", old, "", "callboard.tests.scheduling.snapshot_runs")
    with copies as runs, pytest.raises((AssertionError, AttributeError)):
        runs.run_worlds(WORLDS)


def test_a_snapshot_changes_nothing_and_names_every_attribute_of_a_request() -> None:
    scheduler = busy_scheduler()
    before = scheduler.statistics()
    scheduler.snapshot()
    assert scheduler.statistics() == before
    restored = Scheduler.restore(scheduler.limits, scheduler.snapshot())
    for request in restored._state.requests():
        assert attributes(request).keys() == set(type(request).__slots__)


def test_a_snapshot_of_another_version_a_damaged_one_and_other_limits_are_told() -> None:
    scheduler = busy_scheduler()
    data = scheduler.snapshot()
    with pytest.raises(ConfigError, match="of version 513, this Callboard reads version 2"):
        Scheduler.restore(scheduler.limits, b"\1\2" + data[2:])
    with pytest.raises(ConfigError, match="cannot be read"):
        Scheduler.restore(scheduler.limits, data[:-1])
    with pytest.raises(ConfigError, match="other limits"):
        Scheduler.restore(make_limits(num_blocks=9, block_size=4, max_num_seqs=2), data)
