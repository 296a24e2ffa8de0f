"""Callboard: an LLM serving engine of asyncio actors.

`AsyncClient` talks to a running server; it is imported on first use so that importing the package loads nothing heavy.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = ["AsyncClient", "__version__"]

if TYPE_CHECKING:
    from .client import AsyncClient


def __getattr__(name: str) -> object:
    if name == "AsyncClient":
        from .client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module 'callboard' has no attribute {name!r}")
