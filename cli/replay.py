"""`callboard replay`: a journal's scheduler once more, to the same plans or with other limits."""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..errors import ConfigError
from ..journal.arrivals import Arrivals
from ..journal.outcomes import Outcomes
from ..journal.plan_text import RunNames, plan_lines
from ..journal.reader import JournalFile
from ..journal.replay import Difference, Replay, runs_of
from ..journal.step_model import StepTimes
from ..journal.what_if import WhatIf, what_if
from ..scheduling.limits import SchedulerLimits
from ..scheduling.statistics import SchedulerStatistics
from .ledger_screen import format_ledger
from .what_if_screen import Column, comparison_lines


def replay_files(
    paths: Sequence[Path], policy: str | None, overrides: Sequence[str], until: int | None, show: str | None
) -> int:
    """Replay and print; 0 if every plan is identical, 1 if one differs. Raises ConfigError."""
    changes = [f"policy={policy}"] if policy is not None else []
    changes += overrides
    if (until is None) != (show is None):
        raise ConfigError("--until STEP and --show REQUEST go together", advice="name both")
    status = 0
    for files in runs_of([JournalFile(path) for path in paths]):
        status |= _replay_run(files, changes, until, show)
    return status


def _replay_run(files: Sequence[JournalFile], changes: Sequence[str], until: int | None, show: str | None) -> int:
    """One scheduler's life."""
    limits = changed_limits(files[0].limits, changes)
    names, outcomes, arrivals, times = RunNames(), Outcomes(), Arrivals(), StepTimes()
    replay = Replay(observers=(names, outcomes, arrivals, times), until_step=until)
    if files[0].snapshot is not None:
        arrivals.begin_attached(files[0].header.now_ns)
    begin_s = time.perf_counter()
    replay.run(files)
    print("\n".join(_summary(files, replay, len(outcomes.of), time.perf_counter() - begin_s)))
    if replay.difference is not None:
        print("\n".join(_difference_lines(replay, replay.difference, names)))
        return 1
    if show is not None:
        return _show_request(replay, until, show)
    print("identical: every plan is what it was, byte for byte")
    if not changes:
        return 0
    model = times.fit()
    if model is None:
        raise ConfigError("no step was run in this journal", advice="there is nothing to compare with; name another")
    same = what_if(files[0].limits, arrivals.timed, arrivals.stops, outcomes, model)
    changed = what_if(limits, arrivals.timed, arrivals.stops, outcomes, model)
    columns = [_recorded_column(files[0], replay, outcomes), _column("modelled", same)]
    columns.append(_column(", ".join(changes), changed))
    print("\n".join(comparison_lines(columns, model)))
    return 0


def changed_limits(limits: SchedulerLimits, changes: Sequence[str]) -> SchedulerLimits:
    """With each `key=value` in its place. Raises ConfigError that names the key."""
    fields = {field.name: field.type for field in msgspec.structs.fields(SchedulerLimits)}
    found: dict[str, object] = {}
    for change in changes:
        key, is_set, text = change.partition("=")
        key = key.strip()
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            advice = f"did you mean {near[0]}?" if near else f"allowed: {', '.join(fields)}"
            raise ConfigError(f"--set {change}: unknown field {key!r}", advice=advice)
        try:
            value: object = None if text.strip() == "none" else text.strip()
            found[key] = msgspec.convert(value, fields[key], strict=False)
        except msgspec.ValidationError as error:
            advice = "write --set key=value" if not is_set else "docs/topology.md has the allowed values"
            raise ConfigError(f"--set {change}: {error}", advice=advice) from error
    try:
        return msgspec.structs.replace(limits, **found)
    except ValueError as error:
        raise ConfigError(f"--set: {error}", advice="choose another value") from error


def _summary(files: Sequence[JournalFile], replay: Replay, num_requests: int, seconds: float) -> list[str]:
    header = files[0].header
    written = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(header.wall_ns / 1e9))
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    lines = [
        f"{files[0].path}{more}: begun {written} by Callboard {header.package_version}",
        f"{replay.num_steps:,} steps, {replay.num_calls:,} calls, {num_requests:,} requests, "
        f"{(replay.now_ns - header.now_ns) / 1e9:,.1f} s of its time, replayed in {seconds:,.1f} s",
        f"hash {replay.digest()}",
    ]
    return [*lines, replay.ending] if replay.ending else lines


def _difference_lines(replay: Replay, difference: Difference, names: RunNames) -> list[str]:
    call = difference.recorded
    recorded = f"{call.num_rows:,} rows, {call.num_new_rows:,} of them new" if call.has_plan else "no plan"
    lines = [
        f"DIFFERENT at step {replay.num_steps} (call {replay.num_calls}, {difference.now_ns} ns): {difference.reason}",
        f"recorded: {recorded}",
    ]
    if difference.plan is None:
        return [*lines, "replayed: no plan"]
    names.planned(difference.plan)
    first, *rest = plan_lines(difference.plan, names)
    return [*lines, f"replayed: {first}", *rest]


def _show_request(replay: Replay, until: int | None, request_id: str) -> int:
    """Print the request's ledgers where the replay stopped."""
    scheduler = replay.scheduler
    if not replay.is_at_step:
        raise ConfigError(f"the journal has no step {until}", advice=f"it has {replay.num_steps:,}, from 0 on")
    assert scheduler is not None, "it made a step"
    ledgers = scheduler.explain(request_id)
    if not ledgers:
        raise ConfigError(f"at step {until} the scheduler knows no request {request_id!r}", advice="name another step")
    for ledger in ledgers:
        print("\n".join(format_ledger(request_id, ledger, replay.now_ns)))
    if num_left_out := ledgers[0].num_choices_left_out:
        print(f"{num_left_out:,} choices more are not told")
    return 0


def _recorded_column(file: JournalFile, replay: Replay, outcomes: Outcomes) -> Column:
    assert replay.scheduler is not None
    assert replay.statistics_before is not None
    statistics = _counted_since(replay.statistics_before, replay.scheduler.statistics())
    duration_ns = replay.now_ns - file.header.now_ns
    return Column("recorded", outcomes.of.values(), statistics, replay.num_steps, duration_ns)


def _counted_since(before: SchedulerStatistics, after: SchedulerStatistics) -> SchedulerStatistics:
    """`after` with the counters that the comparison shows begun anew."""
    names = ("num_preemptions", "prefix_cache_hits", "generation_tokens")
    counts = {name: getattr(after, name) - getattr(before, name) for name in names}
    return msgspec.structs.replace(after, **counts)


def _column(title: str, run: WhatIf) -> Column:
    return Column(title, run.outcomes.of.values(), run.scheduler.statistics(), run.num_steps, run.end_ns - run.begin_ns)
