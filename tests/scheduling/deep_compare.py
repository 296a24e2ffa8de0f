"""Two object graphs, attribute by attribute: whatever a class has is compared, so that nothing can be forgotten."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator
from enum import Enum
from operator import attrgetter
from types import FunctionType

import msgspec
import numpy as np

MADE_AGAIN = {
    ("RowArrays", "_in_order"),
    ("RowArrays", "_by_rank"),
    ("RowArrays", "_requests_of"),
    ("RowArrays", "_bytes_of"),
    ("Outbox", "_heads"),
}
"""(class, attribute) that only saves work: what it holds follows from the other attributes."""
WITHOUT_ORDER = {("HeapLines", "_places")}
"""Dicts that nobody iterates over."""
PLAIN = (int, float, str, bytes, bool, type(None), frozenset, Enum, msgspec.Struct, FunctionType, attrgetter)


def attributes(thing: object) -> dict[str, object]:
    """Of an instance, from `__slots__` and `__dict__`; of a slot that was never set none."""
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | getattr(thing, "__dict__", {})


class DeepCompare:
    """Collects `differences`; `objects`: how many were compared, by class. An object that is referred to twice must be
    one object on the other side, too."""

    def __init__(self) -> None:
        self.differences: list[str] = []
        self.objects: dict[str, int] = {}
        self._others: dict[int, object] = {}
        self._kept: list[object] = []

    def compare(self, one: object, other: object, path: str) -> None:
        if type(one) is not type(other):
            self._differ(path, one, other)
        elif isinstance(one, np.ndarray):
            same = one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())  # type: ignore[attr-defined]
            self._check(same, path, one, other)
        elif isinstance(one, (*PLAIN, array)):
            self._check(one == other, path, one, other)
        elif isinstance(one, dict):
            self._compare_dicts(one, other, path)  # type: ignore[arg-type]
        elif isinstance(one, list | tuple | deque):
            assert isinstance(other, list | tuple | deque)
            self._check(len(one) == len(other), path, one, other)
            for index, (item, item_there) in enumerate(zip(one, other, strict=False)):
                self.compare(item, item_there, f"{path}[{index}]")
        else:
            assert type(one).__module__.startswith("callboard."), f"{path}: cannot compare {one!r}"
            self._compare_objects(one, other, path)

    def _compare_dicts(self, one: dict[object, object], other: dict[object, object], path: str) -> None:
        self._check(list(one) == list(other), f"{path} keys", list(one), list(other))
        for key in one.keys() & other.keys():
            self.compare(one[key], other[key], f"{path}[{key!r}]")

    def _compare_objects(self, one: object, other: object, path: str) -> None:
        if id(one) in self._others:
            self._check(self._others[id(one)] is other, f"{path} identity", one, other)
            return
        self._others[id(one)] = other
        kind = type(one).__name__
        self.objects[kind] = self.objects.get(kind, 0) + 1
        mine, there = _normal(one), _normal(other)
        self._kept += [mine, there]  # ids of what was made here are not to be used again
        self._check(mine.keys() == there.keys(), f"{path} attributes", sorted(mine), sorted(there))
        for name in mine.keys() & there.keys():
            self.compare(mine[name], there[name], f"{path}.{name}")

    def _check(self, is_same: bool, path: str, one: object, other: object) -> None:
        if not is_same:
            self._differ(path, one, other)

    def _differ(self, path: str, one: object, other: object) -> None:
        self.differences.append(f"{path}: {one!r} != {other!r}"[:500])


def _normal(thing: object) -> dict[str, object]:
    """Attributes without what is made again, and without what means nothing any more."""
    kind = type(thing).__name__
    found = {name: value for name, value in attributes(thing).items() if (kind, name) not in MADE_AGAIN}
    if kind == "LedgerBook":  # a heap with entries of requests that left the line
        found["_line"] = sorted(entry for entry in found["_line"] if entry[2].line_entry == entry[1])  # type: ignore[attr-defined]
    if kind == "PlannedStep":
        found["requests"] = list(found["requests"])  # type: ignore[call-overload]
    for name in [name for name in found if (kind, name) in WITHOUT_ORDER]:
        value = found[name]
        assert isinstance(value, dict)
        found[name] = dict(sorted(value.items()))
    return found


def differences(one: object, other: object) -> Iterator[str]:
    """Where they are not the same."""
    comparison = DeepCompare()
    comparison.compare(one, other, type(one).__name__)
    yield from comparison.differences
