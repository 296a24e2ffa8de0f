"""Callboard: an LLM serving engine of asyncio actors.

`AsyncClient` talks to a running server, `Engine` starts one for itself; they are imported on first use so that
importing the package loads nothing heavy.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Engine", "Timeouts", "__version__"]

if TYPE_CHECKING:
    from .client import AsyncClient, Engine, Timeouts


def __getattr__(name: str) -> object:
    if name in ("AsyncClient", "Engine", "Timeouts"):
        from . import client

        return getattr(client, name)
    raise AttributeError(f"module 'callboard' has no attribute {name!r}")
