"""A good file with one fault of each kind planted: `callboard topology check` names the place (with the line), the
value, what is allowed, and what to do. A line of what is planted has the mark ◀: it is the one to be named."""

from __future__ import annotations

import re

import pytest

from callboard.tests.topology.planted_faults import KINDS, WARNINGS, lines_of, write


def test_the_good_file_is_good(tmp_path, tiny_checkpoint, capsys):
    path, _ = write(tmp_path, tiny_checkpoint)
    assert lines_of(path, capsys) == (0, [])


def test_there_are_more_than_25_kinds():
    assert len(KINDS) + len(WARNINGS) >= 25 + 8


PLANTS = [
    pytest.param(kind, old, new, says, id=f"{kind}-{number}")
    for kind, plants in {**KINDS, **WARNINGS}.items()
    for number, (old, new, says) in enumerate(plants)
]


@pytest.mark.parametrize(("kind", "old", "new", "says"), PLANTS)
def test_a_planted_fault_is_told_in_one_line(tmp_path, tiny_checkpoint, capsys, kind, old, new, says):
    path, marked = write(tmp_path, tiny_checkpoint, old, new)
    status, lines = lines_of(path, capsys)
    assert len(lines) == 1, lines
    assert status == (0 if kind in WARNINGS else 1)
    severity = "warning" if kind in WARNINGS else "error"
    is_of_whole_file = marked is None or kind == "more memory than there is"
    place = re.escape(str(path)) + (r"(:\d+)?" if is_of_whole_file else f":{marked}")
    assert re.match(rf"{severity}: {place}, (\[|top level)", lines[0]), lines[0]
    for part in says:
        assert part in lines[0], lines[0]
    assert re.search(r"; [^;]+$", lines[0]), "advice"
