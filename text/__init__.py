"""Text and tokens: tokenizer, incremental detokenizer, stop strings, chat template. No torch, no asyncio."""

from .chat_template import ChatTemplate
from .detokenizer import Detokenizer
from .load import load_tokenizer
from .stop_strings import StopStrings
from .tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "StopStrings", "Tokenizer", "load_tokenizer"]
