"""Records many steps of a scheduler, replays its journal, and compares the plans.

    python -m callboard.bench.journal_replay --steps 1000000 --seed 0 --jobs 4

Tiny requests in a tiny pool: aborts, stops, preemptions, drafts, priorities, deaths and failed steps happen all the
time. Each job is a run of its own, with the seed behind the one of the job before. The journal rotates; its last file
is replayed alone, too, from the snapshot that it begins with.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..journal.files import files_of
from ..journal.reader import JournalFile
from ..journal.replay import Replay
from ..scheduling.statistics import SchedulerStatistics
from .machine import describe_machine
from .recorded_run import RecordedRun

MIN_BYTES, MAX_BYTES_A_STEP = 1 << 20, 320
"""Bounds of a journal, of which nothing may go: a step takes a third of that, so there are two or three files."""


class ReplayedRun(msgspec.Struct):
    """A run, recorded and replayed."""

    seed: int
    num_steps: int
    num_events: dict[str, int]
    statistics: SchedulerStatistics
    """Of the recorded scheduler at the end."""
    hash: str
    """Over all recorded plans."""
    replayed_hash: str
    last_file_hash: str
    """By the replay of the last file alone: over all plans, too, for a file begins with the hash of those before."""
    num_replayed: int
    is_same_end: bool
    """Recorded and replayed scheduler have the same statistics at the end."""
    difference: str
    """Empty if there is none."""
    num_bytes: int
    num_files: int
    record_s: float
    replay_s: float

    @property
    def is_identical(self) -> bool:
        hashes = {self.hash, self.replayed_hash, self.last_file_hash}
        return len(hashes) == 1 and not self.difference and self.is_same_end and self.num_replayed == self.num_steps


def record_and_replay(num_steps: int, seed: int, folder: Path) -> ReplayedRun:
    """One run; the journal is left in `folder`."""
    stem = folder / f"journal-{seed}"
    run = RecordedRun(seed, stem, MIN_BYTES + MAX_BYTES_A_STEP * num_steps)
    begin_s = time.perf_counter()
    run.run(num_steps)
    recorded_s = time.perf_counter()
    files = [JournalFile(path) for _, path in sorted(files_of(stem).items())]
    replay = Replay()
    replay.run(files)
    replayed_s = time.perf_counter()
    last = Replay()
    last.run([JournalFile(files[-1].path)])
    statistics = run.scheduler.statistics()
    assert replay.scheduler is not None
    return ReplayedRun(
        seed=seed,
        num_steps=run.num_steps,
        num_events=dict(run.num_events),
        statistics=statistics,
        hash=run.digest(),
        replayed_hash=replay.digest(),
        last_file_hash=last.digest(),
        num_replayed=replay.num_steps,
        is_same_end=replay.scheduler.statistics() == statistics,
        difference=_difference_of(replay) or _difference_of(last),
        num_bytes=sum(file.path.stat().st_size for file in files),
        num_files=len(files),
        record_s=recorded_s - begin_s,
        replay_s=replayed_s - recorded_s,
    )


def _difference_of(replay: Replay) -> str:
    if replay.difference is not None:
        return f"at {replay.difference.now_ns} ns: {replay.difference.reason}"
    return replay.ending


def _job(num_steps: int, seed: int) -> ReplayedRun:
    gc.disable()  # of what a step makes nothing is a cycle
    with tempfile.TemporaryDirectory() as folder:
        return record_and_replay(num_steps, seed, Path(folder))


def _side_by_side(num_steps: int, seeds: Iterable[int]) -> list[ReplayedRun]:
    """A process for each seed."""
    command = [sys.executable, "-P", "-m", "callboard.bench.journal_replay", "--json", "--steps", str(num_steps)]
    jobs = [subprocess.Popen([*command, "--seed", str(seed)], stdout=subprocess.PIPE) for seed in seeds]
    return [msgspec.json.decode(job.communicate()[0], type=ReplayedRun) for job in jobs]


def report(runs: Iterable[ReplayedRun]) -> list[str]:
    """Lines for people."""
    lines: list[str] = []
    totals: Counter[str] = Counter()
    num_steps = 0
    for run in runs:
        statistics, num_steps = run.statistics, num_steps + run.num_steps
        totals.update(run.num_events)
        lines += [
            f"seed {run.seed}: {run.num_steps:,} steps recorded in {run.record_s:,.0f} s, "
            f"{run.num_replayed:,} replayed in {run.replay_s:,.0f} s; {run.num_files} files, "
            f"{run.num_bytes / run.num_steps:.0f} bytes a step",
            f"  {statistics.num_finished:,} requests, {statistics.num_preemptions:,} preemptions, "
            f"{statistics.num_failed_steps:,} failed steps, {statistics.num_accepted_tokens:,} of "
            f"{statistics.num_draft_tokens:,} drafts accepted",
            f"  recorded  {run.hash}",
            f"  replayed  {run.replayed_hash}",
            f"  last file {run.last_file_hash}",
            f"  {'identical' if run.is_identical else f'DIFFERENT {run.difference}'}",
        ]
    lines += ["events:", *(f"  {kind:<20} {count:>12,}" for kind, count in totals.most_common())]
    return [*lines, f"{num_steps:,} steps in all"]


def main() -> int:
    """Print the report; 1 if a plan differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--steps", type=int, default=1_000_000, help="in all jobs together")
    parser.add_argument("--seed", type=int, default=0, help="of the first job")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side, a process each")
    parser.add_argument("--json", action="store_true", help="print the run of one job for a program")
    arguments = parser.parse_args()
    jobs = max(1, arguments.jobs)
    seeds = range(arguments.seed, arguments.seed + jobs)
    num_steps = -(-arguments.steps // jobs)
    if arguments.json:
        print(msgspec.json.encode(_job(num_steps, arguments.seed)).decode())
        return 0
    print(describe_machine(), flush=True)
    runs = _side_by_side(num_steps, seeds)
    print("\n".join(report(runs)))
    return 0 if all(run.is_identical for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
