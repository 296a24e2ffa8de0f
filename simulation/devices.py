"""What a device can do: named ones with their sources, or a TOML file.

Nominal rates are the makers'. What a step reaches of them, and its fixed costs, are fitted by hand to measurements:

- `h200`: decode steps of Llama-3.1-8B in bfloat16 with 512 tokens in and 128 out at batches of 1 to 256, and prefills
  of 2,048 tokens, by vLLM 0.24 on one H200 (2026-11-29): 4.96 ms at 1, 6.80 at 64, 13.87 at 256; 52.5 ms.
- `h100-sxm`, `a100-80g`: the shares of `h200`; not measured.
- `cpu-2core`: two cores of an AMD EPYC (Zen 5): memory read at 72 GB/s, bfloat16 matrices of 2,048 at 841 GFLOP/s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ..errors import ConfigError

_Positive = Annotated[float, Meta(gt=0.0)]
_Share = Annotated[float, Meta(gt=0.0, le=1.0)]
_Time = Annotated[float, Meta(ge=0.0)]
GB, GIB = 10**9, 1 << 30


class DeviceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device, or several that act as one."""

    name: str
    bandwidth: _Positive
    """Memory [bytes/s]."""
    flops: _Positive
    """Dense matrices in the weights' dtype [FLOP/s]."""
    memory_bytes: Annotated[int, Meta(ge=1)]
    bandwidth_share: _Share = 0.8
    """What a step reaches of the bandwidth."""
    flops_share: _Share = 0.6
    """What a step reaches of the FLOP/s."""
    step_overhead_us: _Time = 1000.0
    """Of every step: launches, sampling, the copy of the tokens to the host."""
    row_overhead_us: _Time = 4.0
    """Of every row."""
    source: str = ""
    """Where the numbers are from."""


_H200_SHARES = {"bandwidth_share": 0.8, "flops_share": 0.62, "step_overhead_us": 1000.0, "row_overhead_us": 5.0}

DEVICES: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        DeviceSpec("h200", 4.8e12, 989.4e12, 141 * GB, **_H200_SHARES, source="NVIDIA H200 data sheet (SXM)"),
        DeviceSpec("h100-sxm", 3.35e12, 989.4e12, 80 * GB, **_H200_SHARES, source="NVIDIA H100 data sheet (SXM5)"),
        DeviceSpec("a100-80g", 2.039e12, 312e12, 80 * GB, **_H200_SHARES, source="NVIDIA A100 data sheet (SXM4)"),
        DeviceSpec("cpu-2core", 72e9, 841e9, 24 * GIB, 0.7, 0.4, 1500.0, 50.0, source="measured, see above"),
    )
}


def find_device(name: str) -> DeviceSpec:
    """A named device, or the one that a TOML file describes with the fields of `DeviceSpec`. Raises ConfigError."""
    if name in DEVICES:
        return DEVICES[name]
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"there is no device {name!r}", advice=f"name a TOML file, or one of {', '.join(DEVICES)}")
    try:
        return msgspec.toml.decode(path.read_bytes(), type=DeviceSpec)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"{path}: {error}", advice="docs/simulator.md lists the fields of a device") from error
