"""Log lines: an event name and fields, `worker.ready rank=0 kv_blocks=8123 load_s=1.4`, on standard error."""

from __future__ import annotations

import sys
import time


def log_event(event: str, **fields: object) -> None:
    """Write one line. Life cycle only: nothing per request, nothing per step."""
    parts = [f"{key}={_show(value)}" for key, value in fields.items()]
    stamp = time.strftime("%H:%M:%S")
    print(stamp, event, *parts, file=sys.stderr, flush=True)


def _show(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    text = str(value)
    return repr(text) if any(c.isspace() for c in text) else text
