"""The most urgent first: by (priority, arrival, order of coming), a lower number before a higher one.

A preempted request has the rank that it had, and so its place: more urgent ones that have come meanwhile go first. Rows
are planned by rank, so the last of the plan order, whom `lifo` takes, is the largest (priority, arrival).
"""

from __future__ import annotations

from operator import attrgetter

from .fcfs import first_in_line, one_line
from .policy_views import Order

ORDER = Order(line_of=one_line, rank=attrgetter("rank"), choose=first_in_line, sorts_running=True)
