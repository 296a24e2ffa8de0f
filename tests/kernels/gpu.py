"""Where tests of `callboard.kernels.gpu` run: on the GPU if there is one, else in Triton's interpreter on the CPU.

Such tests are in files `test_gpu_*.py`, which `conftest.py` beside this skips where neither can be. `tests/conftest.py`
turns the interpreter on; with TRITON_INTERPRET=1 set by hand it is used on a machine with a GPU, too.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
DEVICE = torch.device("cpu" if IS_INTERPRETED else "cuda")
"""Of every tensor that a kernel is given."""

assert isinstance(triton.language.cdiv, InterpretedFunction) == IS_INTERPRETED, "triton came before tests/conftest.py"


def _as_float32(handle: TensorHandle) -> TensorHandle:
    """The interpreter holds bfloat16 as its bits, and multiplies matrices of bits as if they were the numbers."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    return TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), tl.float32)


_create_dot = InterpreterBuilder.create_dot
InterpreterBuilder.create_dot = lambda self, a, b, *rest: _create_dot(self, _as_float32(a), _as_float32(b), *rest)


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected|| in float64; nan if either has one."""
    out, expected = out.double().cpu(), expected.double().cpu()
    return float((out - expected).norm() / expected.norm().clamp(min=1e-30))
