"""The comparison as Markdown: medians over the rounds with their spread, and Callboard beside the best of each kind."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from .peer import Kind
from .points import Point
from .rounds import PeerRound, PointFigures

OWN = "callboard"
"""How Callboard's rows begin; the others are what it is compared with."""
MIB = 2**20
_KINDS: Sequence[tuple[str, Kind]] = (("Offline", "offline"), ("Over HTTP", "http"))
Value = Callable[[PeerRound], float | None]


class Column(msgspec.Struct, frozen=True):
    """A figure of a round, None where it has none."""

    title: str
    value: Value
    is_more_better: bool
    digits: int = 0


class Median(msgspec.Struct, frozen=True):
    """Over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Median | None:
        """None without a value."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None

    def text(self, digits: int) -> str:
        """`median (low to high)`, or the value alone if it is the only one."""
        if self.low == self.high:
            return f"{self.median:,.{digits}f}"
        return f"{self.median:,.{digits}f} ({self.low:,.{digits}f} to {self.high:,.{digits}f})"


def columns_of(points: Sequence[Point], has_startup: bool) -> list[Column]:
    """What Callboard is judged by: rates, and the time to the first token where prompts are long."""
    columns = [
        Column(_rate_title(point.name), _of_point(point.name, "output_tokens_per_s"), True, 1)
        for point in points
        if point.name != "long"
    ]
    for name in ("shared", "long"):
        if any(point.name == name for point in points):
            columns.append(Column(f"{name} TTFT p50 ms", _of_point(name, "ttft_p50_ms"), False))
    if has_startup:
        columns += [
            Column("first token s", lambda one: one.first_token_s, False, 2),
            Column("PSS at start MiB", _pss_at_start, False),
            Column("PSS after load MiB", _pss_after_load, False),
        ]
    return columns


def ratio(own: float, best: float, is_more_better: bool) -> float:
    """Above 1 where Callboard is better, whichever way better is."""
    return own / best if is_more_better else best / own


def best_other(rounds: Sequence[PeerRound], column: Column, kind: Kind) -> tuple[str, float] | None:
    """(peer, median) of the best peer of the kind that is not Callboard."""
    medians = [
        (name, median.median)
        for name in _names(rounds)
        if not name.startswith(OWN) and _kind(rounds, name) == kind
        if (median := _median(rounds, name, column)) is not None
    ]
    pick = max if column.is_more_better else min
    return pick(medians, key=lambda entry: entry[1]) if medians else None


def comparison_lines(
    rounds: Sequence[PeerRound], columns: Sequence[Column], kind: Kind, ceilings: Mapping[str, float]
) -> list[str]:
    """A row a peer of the kind, the best other one, a row for each of Callboard's with its ratio to that, and the
    ceilings, tokens/s by point, if there are any."""
    names = [name for name in _names(rounds) if _kind(rounds, name) == kind]
    if not names:
        return []
    lines = [_row(["", *(column.title for column in columns)]), _row(["---"] * (len(columns) + 1))]
    for name in names:
        medians = [(column, _median(rounds, name, column)) for column in columns]
        lines.append(
            _row([name, *("-" if median is None else median.text(column.digits) for column, median in medians)])
        )
    bests = [best_other(rounds, column, kind) for column in columns]
    lines.append(_row(["**best peer**", *("-" if best is None else best[0] for best in bests)]))
    for name in names:
        if name.startswith(OWN):
            ratios = [_ratio_text(rounds, name, column, best) for column, best in zip(columns, bests, strict=True)]
            lines.append(_row([f"**{name} / best peer**", *ratios]))
    if ceilings:
        of_columns = {_rate_title(point): f"{rate:,.0f}" for point, rate in ceilings.items()}
        lines.append(_row(["ceiling (matrices alone)", *(of_columns.get(column.title, "") for column in columns)]))
    return lines


def latency_lines(rounds: Sequence[PeerRound], points: Sequence[Point]) -> list[str]:
    """Medians over the rounds of each run's percentiles, in milliseconds: TTFT p50 / p99, TPOT p50 / p99."""
    lines = [_row(["", *(f"{point.name} TTFT; TPOT" for point in points)]), _row(["---"] * (len(points) + 1))]
    for name in _names(rounds):
        cells = []
        for point in points:
            runs = [one.points[point.name] for one in rounds if one.peer == name and point.name in one.points]
            cells.append(_latencies(runs) if runs else "-")
        lines.append(_row([name, *cells]))
    return lines


def error_lines(rounds: Sequence[PeerRound]) -> list[str]:
    """A line a failure."""
    return [
        f"{one.peer}, round {one.round_index + 1}, {point}: {text}"
        for one in rounds
        for point, text in one.errors.items()
    ]


def report(
    rounds: Sequence[PeerRound], points: Sequence[Point], has_startup: bool, ceilings: Mapping[str, float]
) -> str:
    """All of it. `ceilings`: as of `measure_ceilings`."""
    columns = columns_of(points, has_startup)
    num_rounds = len({one.round_index for one in rounds})
    loads = [one.load_average for one in rounds]
    lines = [
        f"Medians of {num_rounds} alternating rounds (low to high); a ratio above 1 is better than the best peer.",
        "",
    ]
    for title, kind in _KINDS:
        if table := comparison_lines(rounds, columns, kind, ceilings):
            lines += [f"## {title}", "", *table, ""]
    if points:
        lines += ["## Latencies in ms: p50 / p99", "", *latency_lines(rounds, points), ""]
    lines.append(f"Load average before a start: {min(loads):.1f} to {max(loads):.1f}")
    return "\n".join([*lines, *error_lines(rounds)])


def _rate_title(point: str) -> str:
    return f"{point} tok/s"


def _ratio_text(rounds: Sequence[PeerRound], name: str, column: Column, best: tuple[str, float] | None) -> str:
    own = _median(rounds, name, column)
    if own is None or best is None:
        return "-"
    return f"**{ratio(own.median, best[1], column.is_more_better):.2f}**"


def _latencies(runs: Sequence[PointFigures]) -> str:
    ttft = [statistics.median(getattr(run, f"ttft_{q}_ms") for run in runs) for q in ("p50", "p99")]
    tpot = [statistics.median(getattr(run, f"tpot_{q}_ms") for run in runs) for q in ("p50", "p99")]
    return f"{ttft[0]:,.0f} / {ttft[1]:,.0f}; {tpot[0]:.1f} / {tpot[1]:.1f}"


def _of_point(name: str, field: str) -> Value:
    def value(one: PeerRound) -> float | None:
        figures = one.points.get(name)
        return None if figures is None else float(getattr(figures, field))

    return value


def _pss_at_start(one: PeerRound) -> float | None:
    return None if one.memory_at_start is None else one.memory_at_start.pss_bytes / MIB


def _pss_after_load(one: PeerRound) -> float | None:
    return None if one.memory_after_load is None else one.memory_after_load.pss_bytes / MIB


def _names(rounds: Sequence[PeerRound]) -> list[str]:
    """In the order of the first round."""
    return list(dict.fromkeys(one.peer for one in rounds))


def _kind(rounds: Sequence[PeerRound], name: str) -> Kind:
    return next(one.kind for one in rounds if one.peer == name)


def _median(rounds: Sequence[PeerRound], name: str, column: Column) -> Median | None:
    return Median.of(column.value(one) for one in rounds if one.peer == name)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
