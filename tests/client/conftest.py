"""Fixtures: a frontend without an engine and a real HTTP server over it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import aiohttp
import pytest

FAKE = Path(__file__).parents[1] / "server" / "fake_frontend.py"
if "fake_frontend" not in sys.modules:
    spec = importlib.util.spec_from_file_location("fake_frontend", FAKE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_frontend"] = module
    spec.loader.exec_module(module)

from fake_frontend import FakeFrontend, serve_fake  # noqa: E402


@pytest.fixture
def frontend() -> FakeFrontend:
    return FakeFrontend()


@pytest.fixture
async def serve(frontend):
    """Start a server over the fake frontend: `url = await serve(client_stall_s=1.0)`."""
    servers = []

    async def start(**settings):
        server, url = await serve_fake(frontend, **settings)
        servers.append(server)
        return url

    yield start
    for server in servers:
        await server.close()


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session
