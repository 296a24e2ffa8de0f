"""The grammar backends by name."""

from __future__ import annotations

import importlib.util
from typing import Literal

from ..errors import ConfigError
from .backend import GrammarBackend
from .vocabulary import Vocabulary

BackendName = Literal["llguidance", "xgrammar"]


def make_backend(name: BackendName, vocabulary: Vocabulary) -> GrammarBackend:
    """Loads the backend's library, and no other. Raises ConfigError if it is not installed."""
    if importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"the grammar backend {name} is not installed", advice=f"pip install {name}, or name another backend"
        )
    if name == "llguidance":
        from .llguidance_backend import LLGuidanceBackend

        return LLGuidanceBackend(vocabulary)
    from .xgrammar_backend import XGrammarBackend

    return XGrammarBackend(vocabulary)
