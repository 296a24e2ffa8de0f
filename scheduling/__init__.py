"""Pure policy over requests and blocks: no clock, no random source, no device."""

from .events import Event, TokenizerGone, WorkerAttached, WorkerGone
from .limits import SchedulerLimits
from .scheduler import Scheduler
from .statistics import SchedulerStatistics

__all__ = [
    "Event",
    "Scheduler",
    "SchedulerLimits",
    "SchedulerStatistics",
    "TokenizerGone",
    "WorkerAttached",
    "WorkerGone",
]
