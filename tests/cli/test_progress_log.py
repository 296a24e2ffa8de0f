"""Progress where there is no terminal: nothing for what is quick, a line now and then for what is not."""

from __future__ import annotations

from callboard.cli.progress_log import INTERVAL_S, ProgressLog


def test_lines_come_now_and_then_and_name_the_work() -> None:
    now, lines = [0.0], []
    log = ProgressLog(lambda: now[0], lambda event, **fields: lines.append((event, fields)))
    log.start("fetching pypi:x==1", 100_000_000)
    for _ in range(4):
        now[0] += INTERVAL_S * 0.6
        log.advance(20_000_000)
    log.finish()
    wanted = {"what": "fetching pypi:x==1", "of_mb": 100}
    assert lines == [
        ("start.progress", {**wanted, "mb": 40, "share": "40%"}),
        ("start.progress", {**wanted, "mb": 80, "share": "80%"}),
    ]


def test_what_is_quick_says_nothing() -> None:
    lines: list[str] = []
    log = ProgressLog(lambda: 0.0, lambda event, **_: lines.append(event))
    log.start("unpacking", None)
    log.advance(1)
    log.finish()
    log.loading(1, 2)
    log.loading(2, 2)
    assert lines == []


def test_weights_and_an_unknown_size_are_told() -> None:
    now, lines = [0.0], []
    log = ProgressLog(lambda: now[0], lambda event, **fields: lines.append(fields))
    log.loading(0, 4_000_000)
    now[0] += INTERVAL_S
    log.loading(3_000_000, 4_000_000)
    log.finish()
    log.start("fetching org/name", None)
    now[0] += INTERVAL_S
    log.advance(7_000_000)
    assert lines == [
        {"what": "loading weights", "mb": 3, "of_mb": 4, "share": "75%"},
        {"what": "fetching org/name", "mb": 7, "of_mb": "unknown", "share": "unknown"},
    ]
