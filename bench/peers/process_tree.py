"""The resident memory of a process and of everything it started."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import msgspec

_FIELD = re.compile(r"^(Rss|Pss):\s+(\d+) kB", re.MULTILINE)
_PARENT = re.compile(r"^PPid:\s+(\d+)", re.MULTILINE)


class TreeMemory(msgspec.Struct, frozen=True):
    """Sums over the processes."""

    rss_bytes: int
    """Counts a page once for each process that maps it."""
    pss_bytes: int
    """Shares a page among the processes that map it, so that the sum is what the tree holds."""


def tree_memory(pid: int) -> TreeMemory:
    """Processes that end meanwhile count nothing."""
    sums = {"Rss": 0, "Pss": 0}
    for member in process_tree(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        for name, kib in _FIELD.findall(rollup):
            sums[name] += int(kib) * 1024
    return TreeMemory(sums["Rss"], sums["Pss"])


def process_tree(pid: int) -> list[int]:
    """The process and its descendants, parents first."""
    children = defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = _PARENT.search(status.read_text())
        except OSError:
            continue
        if parent:
            children[int(parent[1])].append(int(status.parent.name))
    tree = [pid]
    for member in tree:
        tree.extend(children[member])
    return tree
