"""The memory of an NVIDIA GPU, asked of its driver's tool: processes that plan have no torch."""

from __future__ import annotations

import os
import subprocess

from ..errors import StartFailed

_MIB = 1 << 20


def free_device_bytes(device: str) -> int:
    """`cuda` or `cuda:N`, as CUDA counts them. Raises StartFailed where there is no such device."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", driver_name(device)]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return int(found.stdout.split()[0]) * _MIB
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        reason = getattr(error, "stdout", None) or str(error)
        raise StartFailed(
            f"device {device} cannot be asked for its memory: {str(reason).strip()}",
            advice='see whether nvidia-smi shows the device, or use device = "cpu"',
            phase="device",
        ) from error


def driver_name(device: str) -> str:
    """What the driver's tool calls `cuda` or `cuda:N`: an index or a UUID, which CUDA_VISIBLE_DEVICES may list. Workers
    count in the same order (`child_starts.DEVICE_ORDER`). Raises StartFailed for one that is not visible."""
    index = int(device.partition(":")[2] or 0)
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return str(index)
    names = [name.strip() for name in listed.split(",") if name.strip()]
    if index >= len(names):
        raise StartFailed(
            f"device {device} is not visible: CUDA_VISIBLE_DEVICES is {listed!r}",
            advice="name a device that is listed there, counted from 0",
            phase="device",
        )
    return names[index]
