"""Numbers for people."""

from __future__ import annotations


def render_bytes(num_bytes: int) -> str:
    """`734.4 MiB`; exact under 1 KiB."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes} B"
    size = num_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"
