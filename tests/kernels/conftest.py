"""Tests of kernels that the machine cannot run are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


def _why_not() -> str | None:
    """What the CPU's kernels lack here."""
    try:
        from callboard.kernels.cpu.isa import host_isa
    except ImportError as error:
        return f"the CPU's kernels need numba: {error}"
    return None if host_isa() else "this CPU has neither AVX2, FMA and F16C nor AVX-512 with VNNI"


class _SkippedModule(pytest.Module):
    """Not even imported."""

    def collect(self) -> Iterator[pytest.Item]:
        raise pytest.skip.Exception(_why_not() or "", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    if module_path.name.startswith("test_cpu_") and _why_not():
        return _SkippedModule.from_parent(parent, path=module_path)
    return None
