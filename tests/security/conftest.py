"""Makes the helpers of this folder and the fake frontend of tests/server importable by name."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

HERE = Path(__file__).parent

for name, path in (
    ("forbidden_code", HERE / "forbidden_code.py"),
    ("hostile_bytes", HERE / "hostile_bytes.py"),
    ("fake_frontend", HERE.parent / "server" / "fake_frontend.py"),
):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
