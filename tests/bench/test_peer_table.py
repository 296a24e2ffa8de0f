"""The arithmetic of the comparison: medians, ratios, who is best."""

from __future__ import annotations

from callboard.bench.load import StreamTimes
from callboard.bench.peers.peer import Kind
from callboard.bench.peers.points import Point
from callboard.bench.peers.process_tree import TreeMemory
from callboard.bench.peers.rounds import PeerRound, PointFigures, figures_of
from callboard.bench.peers.table import Median, best_other, columns_of, comparison_lines, error_lines, ratio, report

POINTS = [Point("c4", 4, 8, 16, 16), Point("long", 1, 3, 100, 16)]


def one_round(peer: str, kind: Kind, index: int, rate: float, ttft: float, start_s: float = 1.0) -> PeerRound:
    """Of two points with the same latencies."""
    figures = PointFigures(rate, ttft, 2 * ttft, 10.0, 20.0)
    memory = TreeMemory(300 * 2**20, 200 * 2**20)
    return PeerRound(peer, kind, index, 0.5, start_s, memory, memory, {"c4": figures, "long": figures})


ROUNDS = [
    one_round("callboard auto offline", "offline", 0, 100.0, 50.0),
    one_round("fast", "offline", 0, 80.0, 40.0, start_s=2.0),
    one_round("slow", "offline", 0, 10.0, 400.0, start_s=0.5),
    one_round("callboard auto", "http", 0, 90.0, 60.0),
    one_round("callboard auto offline", "offline", 1, 130.0, 60.0),
    one_round("fast", "offline", 1, 60.0, 20.0, start_s=2.0),
    one_round("callboard auto offline", "offline", 2, 120.0, 10.0),
    one_round("fast", "offline", 2, 100.0, 25.0, start_s=2.0),
]


def test_figures_of_a_run() -> None:
    streams = [StreamTimes(0.0, 0.5, 1.5, 11), StreamTimes(0.5, 1.5, 5.5, 11), StreamTimes(1.0, 4.0, 10.0, 11)]
    figures = figures_of(streams)
    assert figures.output_tokens_per_s == 3.3  # 33 tokens in 10 s
    assert (figures.ttft_p50_ms, figures.ttft_p99_ms) == (1000.0, 3000.0)
    assert (figures.tpot_p50_ms, figures.tpot_p99_ms) == (400.0, 600.0)


def test_a_median_shows_its_spread() -> None:
    median = Median.of([3.0, None, 1.0, 1234.5])
    assert median == Median(3.0, 1.0, 1234.5)
    assert median.text(1) == "3.0 (1.0 to 1,234.5)"
    assert Median(2.0, 2.0, 2.0).text(0) == "2"
    assert Median.of([None]) is None


def test_a_ratio_above_1_is_better_whichever_way_better_is() -> None:
    assert ratio(150.0, 100.0, is_more_better=True) == 1.5
    assert ratio(150.0, 300.0, is_more_better=False) == 2.0


def test_the_best_peer_is_of_the_same_kind_and_not_callboard() -> None:
    rate, ttft, start = columns_of(POINTS, has_startup=True)[:3]
    assert best_other(ROUNDS, rate, "offline") == ("fast", 80.0)
    assert best_other(ROUNDS, ttft, "offline") == ("fast", 25.0)
    assert best_other(ROUNDS, start, "offline") == ("slow", 0.5)
    assert best_other(ROUNDS, rate, "http") is None


def test_the_table_of_a_kind() -> None:
    columns = columns_of(POINTS, has_startup=False)
    assert comparison_lines(ROUNDS, columns, "offline", {}) == [
        "|  | c4 tok/s | long TTFT p50 ms |",
        "| --- | --- | --- |",
        "| callboard auto offline | 120.0 (100.0 to 130.0) | 50 (10 to 60) |",
        "| fast | 80.0 (60.0 to 100.0) | 25 (20 to 40) |",
        "| slow | 10.0 | 400 |",
        "| **best peer** | fast | fast |",
        "| **callboard auto offline / best peer** | **1.50** | **0.50** |",
    ]
    assert comparison_lines(ROUNDS[:3], columns, "http", {}) == []


def test_without_another_peer_there_is_no_ratio() -> None:
    lines = comparison_lines(ROUNDS, columns_of(POINTS, has_startup=False), "http", {})
    assert lines[-2:] == ["| **best peer** | - | - |", "| **callboard auto / best peer** | - | - |"]


def test_a_failed_point_is_told_and_the_others_stand() -> None:
    failed = PeerRound("fast", "offline", 3, 0.5, errors={"startup": "no such file"})
    assert error_lines([*ROUNDS, failed]) == ["fast, round 4, startup: no such file"]
    text = report([*ROUNDS, failed], POINTS, has_startup=True, ceilings={"c4": 1234.6})
    assert "fast, round 4, startup: no such file" in text
    assert "| fast | 80.0 (60.0 to 100.0) | 25 (20 to 40) | 2.00 | 200 | 200 |" in text
    assert text.count("| ceiling (matrices alone) | 1,235 |  |  |  |  |") == 2  # offline and over HTTP
    assert "| callboard auto | 60 / 120; 10.0 / 20.0 | 60 / 120; 10.0 / 20.0 |" in text
