"""What a process holds: private memory, descriptors, threads; how fast the memory grows; the CPU time it has had."""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

_FIELD = re.compile(r"^(RssAnon|VmSwap|Threads):\s+(\d+)", re.MULTILINE)


class ProcessSample(msgspec.Struct, frozen=True):
    """One process at one moment."""

    time_s: float
    num_requests: int
    memory_bytes: int
    """RssAnon + VmSwap: what the process has for itself, wherever the kernel keeps it."""
    num_fds: int
    num_threads: int


def sample_process(pid: int, time_s: float, num_requests: int) -> ProcessSample:
    """Raises OSError if the process is not there."""
    fields = {name: int(number) for name, number in _FIELD.findall(Path(f"/proc/{pid}/status").read_text())}
    return ProcessSample(
        time_s=time_s,
        num_requests=num_requests,
        memory_bytes=1024 * (fields["RssAnon"] + fields["VmSwap"]),
        num_fds=len(os.listdir(f"/proc/{pid}/fd")),
        num_threads=fields["Threads"],
    )


def cpu_s(pid: int) -> float:
    """User and system time of a process, in steps of a clock tick, mostly 10 ms. Raises OSError if it is not there."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_cpu_s() -> float:
    """Time that the machine's cores were not idle, together, what a hypervisor took of them included."""
    # user nice system idle iowait irq softirq steal; the two behind are in user and nice
    ticks = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def growth_bytes_per_s(samples: Sequence[ProcessSample]) -> float:
    """The median of the slopes between all pairs of samples (Theil-Sen): one step of an allocator does not move it."""
    slopes = [
        (b.memory_bytes - a.memory_bytes) / (b.time_s - a.time_s)
        for i, a in enumerate(samples)
        for b in samples[i + 1 :]
        if b.time_s > a.time_s
    ]
    return statistics.median(slopes) if slopes else 0.0
