"""Text and tokens: tokenizer, incremental detokenizer, stop strings, chat template, and what stands in an answer: tool
calls, reasoning. No torch, no asyncio.

What is named here is loaded when it is asked for: a frontend reads answers and has no use for a vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .chat_template import ChatTemplate
    from .detokenizer import Detokenizer
    from .load import load_tokenizer
    from .stop_strings import StopStrings
    from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopStrings", "Tokenizer", "load_tokenizer"]


def __getattr__(name: str) -> object:
    match name:
        case "ChatTemplate":
            from .chat_template import ChatTemplate

            return ChatTemplate
        case "Detokenizer":
            from .detokenizer import Detokenizer

            return Detokenizer
        case "StopStrings":
            from .stop_strings import StopStrings

            return StopStrings
        case "Tokenizer":
            from .tokenizer import Tokenizer

            return Tokenizer
        case "load_tokenizer":
            from .load import load_tokenizer

            return load_tokenizer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
