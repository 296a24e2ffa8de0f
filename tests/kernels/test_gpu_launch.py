"""A kernel of a few lines runs here, on a GPU or in Triton's interpreter, with a loop bound that it loads."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from callboard.kernels.gpu.launch import has_dependent_launch, num_sms
from callboard.tests.kernels.gpu import DEVICE, relative_error


@triton.jit
def _sum_rows(x, lengths, out, row_stride, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    length = tl.load(lengths + row)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, length, BLOCK):
        seen = start + columns < length
        total += tl.load(x + row * row_stride + start + columns, mask=seen, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(total))


def test_ragged_rows_are_summed():
    x = torch.randn(3, 100, generator=torch.Generator().manual_seed(0)).to(DEVICE, torch.bfloat16)
    lengths = torch.tensor([100, 1, 37], dtype=torch.int32, device=DEVICE)
    out = torch.full((3,), torch.nan, device=DEVICE)
    pdl = has_dependent_launch(DEVICE)
    _sum_rows[(3,)](x, lengths, out, x.stride(0), BLOCK=16, PDL=pdl, launch_pdl=pdl)
    expected = torch.stack([row[:n].double().sum() for row, n in zip(x.cpu(), lengths.tolist(), strict=True)])
    assert relative_error(out, expected) < 1e-6
    assert num_sms(DEVICE) >= 1
