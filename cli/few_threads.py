"""numpy without the threads of its matrix library: it would start one for each core, and nobody here has matrices for
it. They would make forking children unsafe, and take 0.1 s of a processor at the start."""

from __future__ import annotations

import os
import sys
from importlib import import_module

_SETTING = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """To be called before anything else imports it; what the user has set stays."""
    if _SETTING in os.environ or "numpy" in sys.modules:
        return
    os.environ[_SETTING] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[_SETTING]  # torch, in children, may read it, too
