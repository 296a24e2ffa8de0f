"""Every input of the scheduler in a file, and what can be done with it: replay, questions, what-if."""

from .reader import JournalFile
from .replay import Difference, Observer, Replay, runs_of
from .writer import JournalWriter

__all__ = ["Difference", "JournalFile", "JournalWriter", "Observer", "Replay", "runs_of"]
