"""The memory of an NVIDIA GPU, asked of its driver's tool: processes that plan have no torch."""

from __future__ import annotations

import subprocess

from ..errors import StartFailed

_MIB = 1 << 20


def free_device_bytes(device: str) -> int:
    """`cuda` or `cuda:N`. Raises StartFailed where there is no such device."""
    _, _, index = device.partition(":")
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits", "-i", index or "0"]
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
