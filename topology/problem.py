"""One thing that is wrong with a topology, and where it stands."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

NOT_YET = "not supported yet"

Path = tuple[str, ...]
"""Section and field: `("scheduler", "policy")`, `("process", '"worker"', "restart", "max")`; `()` is the whole file."""


class Problem(msgspec.Struct, frozen=True):
    """`[[process]] "worker": device = "tpu"; allowed: "cpu", "null"; leave it out`"""

    path: Path
    """Of the field; of the section where a whole section is wrong."""
    got: str
    """Field and value as they stand in the file."""
    allowed: str
    """What would be right; empty where `got` says it all."""
    advice: str
    """What to do."""
    depends_on: tuple[Path, ...] = ()
    """Other fields whose values had a part in it: while those are faulty it may be none."""
    is_warning: bool = False
    """It can run all the same."""

    @property
    def section(self) -> str:
        return section_title(self.path)

    def fault(self) -> str:
        """The problem without what to do about it."""
        return f"{self.section}: {self.got}" + (f"; allowed: {self.allowed}" if self.allowed else "")

    def sentence(self) -> str:
        """The problem in one line."""
        return f"{self.fault()}; {self.advice}" if self.advice else self.fault()


class Places(msgspec.Struct, frozen=True):
    """Where the values of a topology come from."""

    source: str
    """The file as the user named it; empty for no file."""
    lines: Mapping[Path, int] = {}
    """Path -> line in the file, from 1."""
    overrides: Mapping[Path, str] = {}
    """Path -> the `--set section.key=value` that it comes from."""

    def of(self, path: Path) -> str:
        """`topology.toml:7`, `--set server.port=1`, or the file alone."""
        if path in self.overrides:
            return self.overrides[path]
        line = self.line_of(path)
        return self.source if line is None else f"{self.source}:{line}"

    def line_of(self, path: Path) -> int | None:
        """Of the field, or else of what it stands in."""
        lengths = range(len(path), 0, -1)
        return next((self.lines[path[:length]] for length in lengths if path[:length] in self.lines), None)

    def fault(self, problem: Problem) -> str:
        """What is wrong and where, without what to do about it."""
        place = self.of(problem.path)
        return f"{place}, {problem.fault()}" if place else problem.fault()

    def sentence(self, problem: Problem) -> str:
        """The problem in one line, with its place."""
        return f"{self.fault(problem)}; {problem.advice}" if problem.advice else self.fault(problem)


def section_title(path: Path) -> str:
    """`[scheduler]`, `[[process]] "worker"`, `[[process]] "worker", restart`, or the top of the file."""
    if len(path) < 2:
        return "top level" if not path or path[0] != "process" else "[[process]]"
    if path[0] == "process":
        return f"[[process]] {path[1]}" + "".join(f", {name}" for name in path[2:-1])
    return f"[{'.'.join(path[:-1])}]"


def process_label(table: Mapping[str, object], index: int) -> str:
    """How a `[[process]]` table is called in paths and messages: by its name, or by its number from 1."""
    name = table.get("name")
    return f'"{name}"' if isinstance(name, str) else f"number {index + 1}"
