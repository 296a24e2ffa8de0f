"""The rules of delivery, each left out in the code that ships: what the runs of a `World` must find."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from callboard.actors.frontend import Frontend
from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.actors.stream import Stream
from callboard.actors.text_state import TextState
from callboard.actors.tokenizer import TokenizerActor
from callboard.errors import WouldBlock
from callboard.mailbox import Inbox
from callboard.mailbox.messages.admission import Stop
from callboard.mailbox.messages.requests import Abort, Delivered, Resume, TextDeltas
from callboard.scheduling import intake
from callboard.scheduling.ledger import PreemptionCause
from callboard.scheduling.request import Request
from callboard.scheduling.state import SchedulerState
from callboard.tests.actors.delivery_world import World

Plant = Callable[[pytest.MonkeyPatch], None]


def split_preemption_raises_the_attempt(patch: pytest.MonkeyPatch) -> None:
    """Only the frontend raises `attempt`; preemption raises `run`."""
    preempt = SchedulerState.preempt

    def faulty(self: SchedulerState, request: Request, cause: PreemptionCause) -> None:
        preempt(self, request, cause)
        request.attempt += 1

    patch.setattr(SchedulerState, "preempt", faulty)


def old_attempts_are_taken_by_the_frontend(patch: pytest.MonkeyPatch) -> None:
    """Every message of another attempt is dropped, terminal events too."""
    take_row = Frontend._take_row

    def faulty(self: Frontend, deltas: TextDeltas, row: int) -> None:
        stream = self._live.get(deltas.request_ids[row])
        if stream is not None:
            deltas.attempts[row] = stream.attempt
        take_row(self, deltas, row)

    patch.setattr(Frontend, "_take_row", faulty)


def barrier_what_the_dead_sent_is_still_read(patch: pytest.MonkeyPatch) -> None:
    """Whoever parts from a dead actor discards what it has not read of it."""
    detach = Inbox.detach

    def faulty(self: Inbox[Abort], sender: str) -> None:
        unread = deque(self._waiting)
        detach(self, sender)
        self._waiting = unread

    patch.setattr(Inbox, "detach", faulty)


def barrier_frontends_resume_before_all_have_parted(patch: pytest.MonkeyPatch) -> None:
    """Frontends are told last."""
    patch.setattr(World, "is_parted", lambda *_: True)


def ids_are_not_carried_by_a_resume(patch: pytest.MonkeyPatch) -> None:
    """`Resume` carries the ids delivered."""
    resume = Stream.resume

    def faulty(self: Stream, tokenizer: str) -> Resume:
        message = resume(self, tokenizer)
        delivered = [Delivered(d.choice, [1] * len(d.token_ids), d.num_chars) for d in message.delivered]
        return msgspec.structs.replace(message, delivered=delivered)

    patch.setattr(Stream, "resume", faulty)


def ids_do_not_rebuild_the_text_state(patch: pytest.MonkeyPatch) -> None:
    """The tokenizer rebuilds detokenizer and stop strings from the ids delivered."""

    def faulty(self: TextState) -> None:
        self._delivered = None

    patch.setattr(TextState, "catch_up", faulty)


def encmark_an_abort_does_not_cancel_an_encoding(patch: pytest.MonkeyPatch) -> None:
    """An `Abort` cancels an encoding under way."""
    withdraw = TokenizerActor._withdraw

    def faulty(self: TokenizerActor, request_id: str, attempt: int) -> Any:
        encoding = self._encoding.get(request_id)
        withdrawn = withdraw(self, request_id, attempt)
        if encoding is not None:
            self._encoding[request_id] = encoding
        return withdrawn

    patch.setattr(TokenizerActor, "_withdraw", faulty)


def sweep_requests_of_a_dead_tokenizer_go_on(patch: pytest.MonkeyPatch) -> None:
    """The scheduler ends requests of a dead tokenizer that no `Resume` claims in time."""
    patch.setattr(SchedulerActor, "gone", lambda *_: None)


def upto_an_end_is_of_its_own_attempt_only(patch: pytest.MonkeyPatch) -> None:
    """`Abort` and `Stop` end every attempt up to their own."""
    stop, abort = intake.stop, intake.abort

    def faulty_stop(state: SchedulerState, event: Stop) -> None:
        request = state.find(event.request_id, event.choice)
        if request is not None and request.attempt == event.attempt:
            stop(state, event)

    def faulty_abort(state: SchedulerState, event: Abort) -> None:
        if any(request.attempt == event.attempt for request in state.choices(event.request_id)):
            abort(state, event)

    patch.setattr(intake, "stop", faulty_stop)
    patch.setattr(intake, "abort", faulty_abort)


def uniq_run_numbers_are_used_again(patch: pytest.MonkeyPatch) -> None:
    """The scheduler never uses a run number twice."""
    start = SchedulerState.start

    def faulty(self: SchedulerState, request: Request) -> None:
        self._last_run = next(run for run in range(1000) if run + 1 not in self.running)
        start(self, request)

    patch.setattr(SchedulerState, "start", faulty)


def atomic_the_terminal_event_comes_by_itself(patch: pytest.MonkeyPatch) -> None:
    """The terminal event travels in one message with the last tokens."""

    def faulty(self: TokenizerActor) -> None:
        for frontend in self._unsent.frontends():
            deltas = self._unsent.take(frontend)
            sender = self._frontends[frontend]
            ends = msgspec.structs.replace(
                deltas,
                positions=[
                    position + len(ids) for position, ids in zip(deltas.positions, deltas.token_ids, strict=True)
                ],
                token_ids=[[] for _ in deltas.token_ids],
                texts=["" for _ in deltas.texts],
                logprobs={},
                prompts={},
            )
            sender.post(msgspec.structs.replace(deltas, finishes={}))
            if deltas.finishes:
                sender.post(ends)

    patch.setattr(TokenizerActor, "flush", faulty)


def the_tokenizer_keeps_an_abort_to_itself(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TokenizerActor, "_tell_schedulers", lambda *_: None)


def a_tokenizer_that_lives_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    """After the scheduler's death a request stays with its tokenizer, whose state of it would be left behind."""
    resume = Frontend._resume

    def faulty(self: Frontend, stream: Stream) -> None:
        stream.is_lost = True
        resume(self, stream)

    patch.setattr(Frontend, "_resume", faulty)


def a_death_of_the_frontend_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """The tokenizer aborts the requests of a dead frontend."""
    patch.setattr(TokenizerActor, "gone", lambda *_: None)


def what_is_posted_when_there_is_room_again_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def faulty(self: Sender[Abort]) -> None:
        while self._kept:
            await self._outbox.wait_room()
            try:
                while self._kept:
                    self._outbox.send_nowait(self._kept[0])
                    self._kept.popleft()
            except WouldBlock:
                continue
        if self.on_room is not None:
            self.on_room()

    patch.setattr(Sender, "_drain", faulty)


def what_finds_no_room_is_dropped(patch: pytest.MonkeyPatch) -> None:
    def faulty(self: Sender[Abort], message: Abort) -> None:
        try:
            self.send_nowait(message)
        except WouldBlock:
            return

    patch.setattr(Sender, "post", faulty)


PLANTS: list[Plant] = [
    split_preemption_raises_the_attempt,
    old_attempts_are_taken_by_the_frontend,
    barrier_what_the_dead_sent_is_still_read,
    barrier_frontends_resume_before_all_have_parted,
    ids_are_not_carried_by_a_resume,
    ids_do_not_rebuild_the_text_state,
    encmark_an_abort_does_not_cancel_an_encoding,
    sweep_requests_of_a_dead_tokenizer_go_on,
    upto_an_end_is_of_its_own_attempt_only,
    uniq_run_numbers_are_used_again,
    atomic_the_terminal_event_comes_by_itself,
    the_tokenizer_keeps_an_abort_to_itself,
    a_tokenizer_that_lives_is_not_kept,
    a_death_of_the_frontend_is_ignored,
    what_is_posted_when_there_is_room_again_is_forgotten,
    what_finds_no_room_is_dropped,
]
