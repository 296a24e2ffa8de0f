"""Parts of a journal, by time: which steps of a recorded run are looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ConfigError

NS_PER_S = 1e9


class Period(NamedTuple):
    """From `begin_ns` on, up to `end_ns` and without it, by the clock of the journal's records."""

    begin_ns: float
    end_ns: float
    """May be infinite."""


def is_within(periods: Sequence[Period], time_ns: int) -> bool:
    """One of the periods has it."""
    return any(period.begin_ns <= time_ns < period.end_ns for period in periods)


def parse_period(text: str, origin_ns: int) -> Period:
    """`FROM:TO`, in seconds since `origin_ns`; without FROM from the beginning on, without TO to the end.

    Raises ConfigError.
    """
    begin, colon, end = text.partition(":")
    try:
        begin_s, end_s = float(begin or "0"), float(end or "inf")
    except ValueError:
        begin_s = end_s = math.nan
    if not colon or not 0 <= begin_s < end_s:
        raise ConfigError(f"{text!r} is no period", advice="write FROM:TO in seconds, such as 10:70, or 10: to the end")
    return Period(origin_ns + begin_s * NS_PER_S, origin_ns + end_s * NS_PER_S)
