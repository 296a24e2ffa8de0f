"""What came from outside in a recorded run, apart from the worker: the input of a what-if."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..mailbox.messages.admission import AddInput, Admit, Stop
from ..mailbox.messages.grammar import GrammarFailed, GrammarReady
from ..mailbox.messages.requests import Abort
from ..mailbox.messages.steps import StepPlan
from ..scheduling.deltas import Outgoing
from ..scheduling.events import Event, WorkerAttached
from .outcomes import Key

TimedEvent = tuple[int, Event]
"""(now_ns of the call that got it, event)"""


class Arrivals:
    """Follows a replay. Kept are first attempts, what clients did by the clock, grammars, and the first worker.

    Deaths and what follows from them (later attempts, dead tokenizers, failed steps) are left out, as are drafts and
    transfers, which are of runs that a changed scheduler does not have.
    """

    def __init__(self) -> None:
        self.timed: list[TimedEvent] = []
        self.stops: dict[Key, Stop] = {}
        """Stop strings that the tokenizer found: they come when the token does."""
        self._keys: set[Key] = set()
        self._has_worker = False

    def events(self, now_ns: int, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case Admit(request_id, choice):
                    if (request_id, choice) not in self._keys:
                        self._keys.add((request_id, choice))
                        self.timed.append((now_ns, _without_logprobs(event)))
                case Stop(request_id, choice):
                    self.stops[request_id, choice] = event
                case Abort() | AddInput() | GrammarReady() | GrammarFailed():
                    self.timed.append((now_ns, event))
                case WorkerAttached() if not self._has_worker:
                    self._has_worker = True
                    self.timed.append((now_ns, event))
                case _:
                    pass

    def begin_attached(self, now_ns: int) -> None:
        """The first file begins in the middle of a life: the first worker is there already, or is taken to be."""
        self._has_worker = True
        self.timed.append((now_ns, WorkerAttached(1)))

    def planned(self, plan: StepPlan) -> None:
        """Nothing to learn."""

    def sent(self, now_ns: int, outgoing: Outgoing) -> None:
        """Nothing to learn."""


def _without_logprobs(admit: Admit) -> Admit:
    """The modelled worker has none."""
    sampling = msgspec.structs.replace(admit.sampling, logprobs=None, prompt_logprobs=None)
    return msgspec.structs.replace(admit, sampling=sampling)
