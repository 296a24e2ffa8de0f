"""Fixtures: a frontend without an engine and a real HTTP server over it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from fake_frontend import frontend, http, serve  # noqa: F401
