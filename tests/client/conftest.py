"""Fixtures: a frontend without an engine and a real HTTP server over it; a server that misbehaves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))
sys.path.insert(0, str(Path(__file__).parent))

from fake_frontend import frontend, http, serve  # noqa: F401
from raw_server import RawServer

from callboard.bench.random_model import write_random_model
from callboard.client import AsyncClient


@pytest.fixture
async def raw():
    server = RawServer()
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def raw_client(raw):
    async with AsyncClient(raw.url) as client:
        yield client


@pytest.fixture(scope="session")
def null_model(tmp_path_factory) -> Path:
    """The files of a model for the null device."""
    folder = tmp_path_factory.mktemp("null_model")
    write_random_model(folder, max_model_len=32_768, merges_letters=True)
    return folder
