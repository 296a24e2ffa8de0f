"""Programmatic dependent launch (CUDA, compute capability 9.0): a kernel starts while the one before it still runs.

All its programs may do before `wait_for_previous` is to read what no kernel of the chain writes: weights. Behind it
everything that earlier kernels of the stream wrote is there. Because every kernel of a chain waits before its first
store, a kernel that starts two ahead still finds its own predecessor, and so all before that, complete.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """Let the next kernel start, then wait until the previous one is complete and its writes are visible."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def prefetch_lines(pointers, PDL: tl.constexpr):
    """Ask for the cache lines at `pointers` to come into L2; nothing waits for them."""
    if PDL:
        tl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointers], dtype=tl.int32, is_pure=False, pack=1
        )
