"""Model definitions and their loaders: from the files of a checkpoint to something that a worker can run."""

from .load import load_model
from .protocol import Attention, CausalLM

__all__ = ["Attention", "CausalLM", "load_model"]
