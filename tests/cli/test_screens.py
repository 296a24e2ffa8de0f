"""The screen of a start that failed."""

from __future__ import annotations

from callboard.cli.screens import start_failure_screen
from callboard.errors import ConfigError, CorruptCheckpoint


def test_phase_cause_and_advice() -> None:
    error = ConfigError("cannot listen on h:1: no", advice="take another", phase="network")
    assert start_failure_screen(error) == (
        "callboard could not start (phase: network)\n  cause:  cannot listen on h:1: no\n  advice: take another"
    )


def test_a_kind_of_failure_has_its_usual_advice() -> None:
    assert "\n  advice: fetch the file again" in start_failure_screen(CorruptCheckpoint("x.gguf is truncated"))


def test_a_list_of_causes_stays_on_one_screen() -> None:
    error = ConfigError("40 faults:\n" + "\n".join(f"  fault {i}" for i in range(40)), advice="correct them")
    lines = start_failure_screen(error).splitlines()
    assert len(lines) == 9
    assert lines[1] == "  cause:  40 faults:"
    assert lines[6].strip() == "fault 4"
    assert lines[7].strip() == "... and 35 more"


def test_what_a_broken_file_says_cannot_steer_the_terminal() -> None:
    screen = start_failure_screen(ConfigError("token '\x1b[2J\x07\x85\u202e' and 日本", advice="a\nb"))
    assert screen.splitlines()[1] == "  cause:  token '\\x1b[2J\\x07"
    assert screen.replace("\n", "").isprintable() and "日本" in screen and "a b" in screen


def test_long_lines_are_cut() -> None:
    assert max(map(len, start_failure_screen(ConfigError("x" * 5000)).splitlines())) < 650
