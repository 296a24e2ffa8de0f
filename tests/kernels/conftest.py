"""Tests of kernels that the machine cannot run are skipped, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest


@cache
def _why_not_cpu() -> str | None:
    """What the CPU's kernels lack here."""
    try:
        from callboard.kernels.cpu.isa import host_isa
    except ImportError as error:
        return f"the CPU's kernels need numba: {error}"
    return None if host_isa() else "this CPU has neither AVX2, FMA and F16C nor AVX-512 with VNNI"


@cache
def _why_not_gpu() -> str | None:
    """What the GPU's kernels lack here: a GPU, or else Triton's interpreter (`tests/conftest.py` turns it on)."""
    try:
        import numpy as np
        import triton
    except ImportError as error:
        return f"the GPU's kernels need triton: {error}"
    if not triton.knobs.runtime.interpret:
        return None
    # Loop bounds become integers there by int(array of one element), which numpy 2.4 refuses.
    is_too_old = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 7)
    is_too_new = np.lib.NumpyVersion(np.__version__) >= "2.4.0"
    return "triton's interpreter before 3.7 needs numpy < 2.4" if is_too_old and is_too_new else None


WHY_NOT = {"test_cpu_": _why_not_cpu, "test_gpu_": _why_not_gpu}


def _why_not(path: Path) -> str | None:
    return next((ask() for prefix, ask in WHY_NOT.items() if path.name.startswith(prefix)), None)


class _SkippedModule(pytest.Module):
    """Not even imported."""

    def collect(self) -> Iterator[pytest.Item]:
        raise pytest.skip.Exception(_why_not(self.path) or "", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    return _SkippedModule.from_parent(parent, path=module_path) if _why_not(module_path) else None
