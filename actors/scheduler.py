"""The scheduler actor: a thin shell that feeds `Scheduler.step` with messages and results and publishes its plans."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..errors import StaleEpoch, WouldBlock
from ..mailbox import Inbox
from ..mailbox.messages.admission import SchedulerToTokenizer, TokenizerToScheduler
from ..mailbox.messages.grammar import Advance, GrammarToScheduler
from ..mailbox.messages.requests import Explain, Explanation
from ..mailbox.messages.steps import StepOutcome, StepPlan, StepResult
from ..scheduling.events import Event, GrammarGone, TokenizerGone, WorkerAttached, WorkerGone
from ..scheduling.leak_ledger import MAX_LOGGED
from ..scheduling.scheduler import Scheduler
from ..scheduling.statistics import SchedulerStatistics
from ..shm_queue import BoardReader, BoardWriter, Phase, ProgressLine
from .faults import Faults
from .log import log_event
from .sender import Sender

if TYPE_CHECKING:
    from .scheduler_journal import SchedulerJournal

_IDLE_CHECK_AFTER_S = 1.0
"""The integrity check comes when nothing has run or waited for so long."""
_MAX_EXPLAINED = 8
"""Questions answered at once: one may cost as much as a step, and clients ask as often as they like."""


ToScheduler = TokenizerToScheduler | GrammarToScheduler


class SchedulerActor:
    """Events in, plans out: results wake it through the result board's doorbell, everything else through the inbox."""

    def __init__(
        self,
        name: str,
        inbox: Inbox[ToScheduler],
        tokenizers: Mapping[str, Sender[SchedulerToTokenizer]],
        scheduler: Scheduler,
        progress: ProgressLine,
        faults: Faults,
        journal: SchedulerJournal | None = None,
        grammars: Mapping[str, Sender[Advance]] | None = None,
    ) -> None:
        """`grammars`: the grammar actor, if there is one."""
        self.name = name
        self.inbox = inbox
        self.faults = faults
        self._tokenizers = tokenizers
        self._scheduler = scheduler
        self._progress = progress
        self._journal = journal
        self._grammars = grammars or {}
        self._events: list[Event] = []
        self._questions: list[Explain] = []
        """They change nothing, so they are no events; answered behind the events that came before."""
        self._more_questions: asyncio.Handle | None = None
        self._call_board: BoardWriter | None = None
        self._result_board: BoardReader | None = None
        self._epoch = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(StepResult)
        self._idle_check: asyncio.TimerHandle | None = None
        self._num_steps_checked = 0
        self._deadline_ns: int | None = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        for tokenizer in tokenizers.values():
            tokenizer.on_room = self._send_deltas
        for grammar in self._grammars.values():
            grammar.on_room = self._advance_grammars
        progress.set_statistics(scheduler.statistics())
        progress.mark(phase=Phase.WAITING)

    # Messages

    def handle(self, message: ToScheduler) -> None:
        if isinstance(message, Explain):
            self._questions.append(message)
        else:
            self._events.append(message)

    def flush(self) -> None:
        self._advance()

    def gone(self, actor: str) -> None:
        """A dead tokenizer's requests wait for a higher attempt, or for the end of their grace; those that draw under a
        grammar wait for its actor's next life."""
        self._events.append(GrammarGone() if actor in self._grammars else TokenizerGone(actor))
        self._advance()

    # Boards

    def attach(self, epoch: int, call_board: BoardWriter, result_board: BoardReader) -> None:
        """The workers of an epoch are ready: plan for them from now on."""
        self.detach()
        self._epoch, self._call_board, self._result_board = epoch, call_board, result_board
        asyncio.get_running_loop().add_reader(result_board.fileno(), self._on_results)
        self._events.append(WorkerAttached(epoch))
        self._advance()

    def worker_gone(self) -> None:
        """The workers' epoch is over: what was in flight is lost, what was running is recomputed by the next ones."""
        self.detach()
        self._events.append(WorkerGone())
        self._advance()

    def detach(self) -> None:
        if self._result_board is not None:
            asyncio.get_running_loop().remove_reader(self._result_board.fileno())
            self._result_board.detach()
        if self._call_board is not None:
            self._call_board.detach()
        self._call_board = self._result_board = None

    def _on_results(self) -> None:
        try:
            self._take_results()
        except Exception as error:  # the loop calls this: without a report the error would be logged, and no more
            self.faults.report(error)

    def _take_results(self) -> None:
        board = self._result_board
        assert board is not None, "the doorbell of a detached board was watched"
        try:
            while True:
                result = self._decoder.decode(board.receive_nowait())
                if result.epoch != self._epoch:
                    raise StaleEpoch(result.epoch, self._epoch)
                if result.outcome is StepOutcome.FAILED:
                    log_event("scheduler.step_failed", step=result.step, error=result.error)
                self._events.append(result)
        except WouldBlock:
            pass
        self._advance()

    # Steps

    def _advance(self) -> None:
        """Plan as far as the pipeline's depth allows, publish, and only then build and send the deltas."""
        scheduler, journal = self._scheduler, self._journal
        events, self._events = self._events, []
        plan = self._step(events)
        while plan is not None:
            assert self._call_board is not None, "a plan without a board"
            encoded = self._encoder.encode(plan)
            # On the board before the deltas of the result that made room for it are built.
            self._call_board.publish_nowait(encoded)
            if journal is not None:
                journal.planned(plan, encoded)
            plan = self._step(()) if scheduler.can_plan else None
        if self._grammars:
            self._advance_grammars()
        self._send_deltas()
        if self._questions:
            self._explain()
        if journal is not None:
            journal.write_due()
        statistics = scheduler.statistics()
        self._progress.set_statistics(statistics)
        phase = Phase.WAITING if self._call_board is None else Phase.SERVING
        self._progress.mark(phase=phase, step=statistics.num_steps)
        self._plan_idle_check(statistics)
        self._set_deadline(scheduler.next_deadline_ns())

    def _step(self, events: Sequence[Event]) -> StepPlan | None:
        now_ns = time.monotonic_ns()
        if self._journal is not None:
            self._journal.take(now_ns, events)
        return self._scheduler.step(now_ns, events)

    def _set_deadline(self, deadline_ns: int | None) -> None:
        """One timer for the scheduler's next deadline. `now_ns` and the loop's time are the same clock."""
        if deadline_ns == self._deadline_ns:
            return
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
        self._deadline_ns, self._deadline_timer = deadline_ns, None
        if deadline_ns is not None:
            self._deadline_timer = asyncio.get_running_loop().call_at(deadline_ns / 1e9, self._on_deadline)

    def _on_deadline(self) -> None:
        self._deadline_ns = self._deadline_timer = None  # the loop may be early by its resolution: then it is set again
        try:
            self._advance()
        except Exception as error:  # as in `_on_results`
            self.faults.report(error)

    def _advance_grammars(self) -> None:
        """Before the deltas: the step that was just planned samples under the masks that follow."""
        for sender in self._grammars.values():
            news = None if sender.is_blocked else self._scheduler.advance_grammars()
            if news is not None:
                sender.post(news)

    def _send_deltas(self) -> None:
        """One message a tokenizer, or more if it would be too large. Where there is no room the tokens stay in the
        scheduler, which merges later ones."""
        has_more = True
        while has_more:
            blocked = [name for name, sender in self._tokenizers.items() if sender.is_blocked]
            outgoing = self._scheduler.collect(blocked)
            has_more = outgoing.has_more
            for tokenizer, refusals in outgoing.refused.items():
                for refused in refusals:
                    self._tokenizers[tokenizer].post(refused)
            for tokenizer, deltas in outgoing.deltas.items():
                self._tokenizers[tokenizer].post(deltas)

    def _explain(self) -> None:
        """Answer some of what was asked, as of the last step; the rest when results that are there have been taken."""
        questions, self._questions = self._questions[:_MAX_EXPLAINED], self._questions[_MAX_EXPLAINED:]
        now_ns = self._scheduler.now_ns
        for question in questions:
            ledgers = self._scheduler.explain(question.about)
            answer = Explanation(question.request_id, question.attempt, question.about, now_ns, ledgers)
            self._tokenizers[question.tokenizer].post(answer)
        if self._questions and self._more_questions is None:
            self._more_questions = asyncio.get_running_loop().call_soon(self._on_more_questions)

    def _on_more_questions(self) -> None:
        self._more_questions = None
        try:
            self._explain()
        except Exception as error:  # as in `_on_results`
            self.faults.report(error)

    # Integrity

    def _plan_idle_check(self, statistics: SchedulerStatistics) -> None:
        """The check looks at every block, which takes milliseconds: not while a last token is on its way, or a client
        may send its next request."""
        if self._idle_check is not None:
            self._idle_check.cancel()
            self._idle_check = None
        is_idle = statistics.num_running == 0 and statistics.num_waiting == 0
        if is_idle and statistics.num_steps != self._num_steps_checked:
            self._idle_check = asyncio.get_running_loop().call_later(_IDLE_CHECK_AFTER_S, self._check_idle)

    def _check_idle(self) -> None:
        try:
            if self._journal is not None:
                self._journal.checked()
            leaks = self._scheduler.check_integrity()
        except Exception as error:  # as in `_on_results`
            self.faults.report(error)
            return
        statistics = self._scheduler.statistics()
        self._num_steps_checked = statistics.num_steps
        if leaks:
            log_event("scheduler.leaked", num_blocks=sum(leak.kind == "block" for leak in leaks), num_units=len(leaks))
            for leak in leaks[:MAX_LOGGED]:
                log_event("scheduler.leak", **leak.fields())
            self._progress.set_statistics(statistics)

    def close(self) -> None:
        if self._idle_check is not None:
            self._idle_check.cancel()
        if self._more_questions is not None:
            self._more_questions.cancel()
        self._set_deadline(None)
        self.detach()
        if self._journal is not None:
            self._journal.close()
        self.faults.cancel()
        for tokenizer in self._tokenizers.values():
            tokenizer.close()
        for grammar in self._grammars.values():
            grammar.close()
        self.inbox.close()
