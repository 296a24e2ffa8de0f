"""What a person sees when a start fails: one clear screen."""

from __future__ import annotations

import sys

from ..errors import StartFailed

MAX_CAUSE_LINES = 7
MAX_LINE_CHARACTERS = 600


def start_failure_screen(error: StartFailed) -> str:
    """Phase, cause and advice of a start that failed, on one screen.

    Causes quote files and other programs: control characters are escaped, long lines and long lists cut.
    """
    causes = [plain(line) for line in error.cause.splitlines()] or [""]
    if len(causes) > MAX_CAUSE_LINES:
        causes[MAX_CAUSE_LINES - 1 :] = [f"  ... and {len(causes) - MAX_CAUSE_LINES + 1:,} more"]
    lines = [f"callboard could not start (phase: {error.phase})", f"  cause:  {causes[0]}"]
    lines += [f"        {line}" for line in causes[1:]]
    if error.advice:
        lines.append(f"  advice: {plain(' '.join(error.advice.splitlines()))}")
    return "\n".join(lines)


def print_start_failure(error: StartFailed) -> None:
    """The screen, on standard error."""
    print(start_failure_screen(error), file=sys.stderr, flush=True)


def plain(line: str) -> str:
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return shown if len(shown) <= MAX_LINE_CHARACTERS else shown[: MAX_LINE_CHARACTERS - 1] + "…"
