"""Where the random driver and hypothesis make their choices, so that both take the same transitions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


class Choices(Protocol):
    """A source of numbers."""

    def below(self, end: int) -> int:
        """Of 0 .. end - 1, the lower the simpler."""
        ...


class SeededChoices:
    """The same numbers for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def below(self, end: int) -> int:
        return int(self._random.random() * end)


class DrawnChoices:
    """Hypothesis chooses, and can shrink what it chose."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def below(self, end: int) -> int:
        return self._data.draw(st.integers(0, end - 1))


def one_of(choices: Choices, values: Sequence[T]) -> T:
    """Simple values first."""
    return values[choices.below(len(values))]


def between(choices: Choices, low: int, high: int) -> int:
    """Both included."""
    return low + choices.below(high - low + 1)
