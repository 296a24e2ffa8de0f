"""The simulator against an engine: two loads in turns, their times, and the cores that each process gets."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from callboard.bench.alternating_loads import EngineTtft, Load, Segment
from callboard.bench.cores import Cores, pinned, share_out
from callboard.bench.open_loop import Outcome
from callboard.bench.random_model import write_random_model
from callboard.bench.simulated_against_measured import Comparison, Latencies, Pair, compare
from callboard.mailbox.messages.admission import Admit, TokenDeltas
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.deltas import Outgoing
from callboard.simulation import TraceRequest
from callboard.simulation.periods import Period


@pytest.mark.parametrize(
    ("siblings", "cores"),
    [
        ([[0], [1]], None),
        ([[0, 1]], None),
        ([[0], [1], [2]], Cores((0,), (1, 2))),
        ([[0, 1], [2, 3]], Cores((0, 1), (2, 3))),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], Cores((0, 1, 2, 4, 5, 6), (3, 7))),
        ([[0], [1, 2, 3]], Cores((0,), (1, 2, 3))),
    ],
)
def test_a_physical_core_has_one_owner(siblings: Sequence[Sequence[int]], cores: Cores | None) -> None:
    assert share_out(siblings) == cores


class _Server:
    """Two processes in place of a server and its worker."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self.pid, self._worker = (process.pid for process in processes)

    def pid_of(self, process: str) -> int:
        assert process == "worker"
        return self._worker

    def children(self) -> list[int]:
        return [self._worker]


def test_everybody_stays_on_its_cores_until_the_end() -> None:
    own = sorted(os.sched_getaffinity(0))
    cores = Cores((own[0],), (own[-1],))
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        server = _Server(processes)
        with pinned(server, cores):  # type: ignore[arg-type]
            assert os.sched_getaffinity(server.pid_of("worker")) == {own[0]}
            assert os.sched_getaffinity(server.pid) == os.sched_getaffinity(0) == {own[-1]}
        assert os.sched_getaffinity(0) == set(own)
        with pinned(server, None):  # type: ignore[arg-type]
            assert os.sched_getaffinity(0) == set(own)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_what_a_client_saw() -> None:
    """Sent 0.1 s late, the first token at 0.3 and the last of 5 at 1.1 s, all since it was due."""
    segment = Segment([TraceRequest(0, 3, 5)], [Outcome(200, 0.3, 1.1, late_s=0.1)], Period(0, 1))
    assert segment.ttft_ns() == pytest.approx([0.2e9])
    assert segment.tpot_ns() == pytest.approx([0.2e9])


def _admit(request_id: str, arrival_ns: int) -> Admit:
    return Admit(request_id, 0, 1, "t", [1], SamplingParams(seed=0), (), arrival_ns)


def _sent(*request_ids: str) -> Outgoing:
    ones = [1] * len(request_ids)
    return Outgoing({"t": TokenDeltas(list(request_ids), ones, ones, ones, [[7]] * len(ones), ones)}, {})


def test_what_the_engine_saw() -> None:
    seen = EngineTtft()
    seen.events(12, [_admit("late", 11), _admit("early", 10)])
    seen.sent(20, _sent("late"))
    seen.sent(25, _sent("late", "early"))
    seen.events(31, [_admit("outside", 30)])
    assert seen.of(Period(10, 30)) == [15, 9]


def test_the_error_is_that_of_the_median_over_all_pairs() -> None:
    """Measured 10, 20, 60 ms and simulated 11, 22, 30: by pairs +10 % and -35 %, over all 20 and 22."""
    ms = 1e6

    def pair(measured: Sequence[float], simulated: Sequence[float]) -> Pair:
        of = [Latencies([v * ms for v in values], [v * ms / 10 for v in values]) for values in (measured, simulated)]
        return Pair(of[0], of[1])

    comparison = Comparison([pair([10], [11]), pair([20, 60], [22, 30])], ["a note"])
    assert comparison.errors() == {"TTFT": pytest.approx(0.1), "TPOT": pytest.approx(0.1)}
    lines = comparison.lines()
    assert lines[0] == "a note"
    assert [line.split()[-1] for line in lines if line.startswith(("pair", "all"))] == ["+10.0%", "-35.0%", "+10.0%"]


@pytest.mark.slow
def test_loads_in_turns_on_an_engine(tmp_path: Path) -> None:
    write_random_model(tmp_path, merges_letters=True)
    before = os.sched_getaffinity(0)
    load = Load(20.0, 12, 6)
    comparison = compare(str(tmp_path), (load, load), num_pairs=1, seconds=1.0, num_threads=1)
    assert os.sched_getaffinity(0) == before
    (pair,) = comparison.pairs
    assert len(pair.measured.ttft_ns) == len(pair.simulated.ttft_ns) == len(load.requests(1.0, seed=3))
    assert min(*pair.measured.ttft_ns, *pair.simulated.ttft_ns) > 0
    assert len(pair.measured.tpot_ns) == len(pair.simulated.tpot_ns)
    assert min(pair.measured.tpot_ns) >= 0 < sum(pair.measured.tpot_ns)  # 0: read with the first token, late
