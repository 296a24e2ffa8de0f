"""Alternating rounds: each peer in turn is started, put through all points, and stopped; then all of them again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import msgspec

from ..load import LoadReport, StreamTimes
from .peer import Kind, Peer, PeerFailed
from .points import STARTUP, Point
from .process_tree import TreeMemory


class PointFigures(msgspec.Struct, frozen=True):
    """One run of one point; the percentiles are over its requests."""

    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float


class PeerRound(msgspec.Struct, frozen=True):
    """One start of one peer. A point that failed is in `errors` and not in `points`."""

    peer: str
    kind: Kind
    round_index: int
    load_average: float
    """Of the machine in the minute before the start."""
    first_token_s: float | None = None
    memory_at_start: TreeMemory | None = None
    memory_after_load: TreeMemory | None = None
    points: dict[str, PointFigures] = {}
    errors: dict[str, str] = {}
    """By point; of the start itself: `startup`."""


def run_rounds(
    peers: Sequence[Peer], points: Sequence[Point], num_rounds: int, vocab_size: int, note: Callable[[PeerRound], None]
) -> None:
    """`note` is told of each start when it is over. A peer that fails at one point is put through the others."""
    for round_index in range(num_rounds):
        for peer in peers:
            note(run_peer(peer, points, round_index, vocab_size))


def run_peer(peer: Peer, points: Sequence[Point], round_index: int, vocab_size: int) -> PeerRound:
    """One start."""
    load_average = os.getloadavg()[0]
    figures: dict[str, PointFigures] = {}
    errors: dict[str, str] = {}
    first_token_s: float | None = None
    memory: list[TreeMemory] = []
    step = STARTUP
    try:
        first_token_s = peer.start()
        memory.append(peer.memory())
        for point in points:
            print(f"  round {round_index + 1}: {peer.name}, {point.name}", file=sys.stderr, flush=True)
            try:
                figures[point.name] = figures_of(run_point(peer, point, round_index, vocab_size))
            except PeerFailed as error:
                errors[point.name] = str(error)
        step = "memory after the load"
        memory.append(peer.memory())
    except PeerFailed as error:
        errors[step] = str(error)
    finally:
        peer.stop()
    at_start, after_load = [*memory, None, None][:2]
    return PeerRound(
        peer.name, peer.kind, round_index, load_average, first_token_s, at_start, after_load, figures, errors
    )


def run_point(peer: Peer, point: Point, round_index: int, vocab_size: int) -> list[StreamTimes]:
    """The warm-up, and then what counts. Raises PeerFailed."""
    warm_up = point.warm_up_prompts(vocab_size, round_index)
    if warm_up:
        peer.run(warm_up, min(point.concurrency, len(warm_up)), point.output_len)
    return peer.run(point.prompts(vocab_size, round_index), point.concurrency, point.output_len)


def figures_of(streams: Sequence[StreamTimes]) -> PointFigures:
    """Tokens per second count from the first request's start to the last token of all."""
    report = LoadReport(streams)
    return PointFigures(
        report.output_tokens_per_s,
        report.percentile("ttft", 50),
        report.percentile("ttft", 99),
        report.percentile("tpot", 50),
        report.percentile("tpot", 99),
    )
