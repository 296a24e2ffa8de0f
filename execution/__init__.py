"""What a worker does with a plan: persistent batch, inputs of a step, paged attention, sampling, result."""

from .runner import ModelRunner
from .threads import configure_threads

__all__ = ["ModelRunner", "configure_threads"]
