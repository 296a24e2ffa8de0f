"""One thing that is wrong with a topology."""

from __future__ import annotations

import msgspec

NOT_YET = "not supported yet"


class Problem(msgspec.Struct, frozen=True):
    """`[scheduler]: policy = "fair"; allowed: only "fcfs", others are not supported yet; leave it out`"""

    place: str
    """Section: `[scheduler]`, `[[process]] "worker"`."""
    got: str
    """Field and value as they stand in the file."""
    allowed: str
    """What would be right."""
    advice: str
    """What to do."""

    def sentence(self) -> str:
        """The problem in one line."""
        return f"{self.fault()}; {self.advice}"

    def fault(self) -> str:
        """The problem without what to do about it."""
        return f"{self.place}: {self.got}; allowed: {self.allowed}"
