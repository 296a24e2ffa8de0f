"""Python client of a running Callboard server."""

from .async_client import AsyncClient
from .deltas import ClientDelta, ClientUsage

__all__ = ["AsyncClient", "ClientDelta", "ClientUsage"]
