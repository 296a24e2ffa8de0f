"""The grammar actor with llguidance over single bytes: what it answers, and the masks that it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from callboard.actors.faults import Faults
from callboard.actors.grammar import GrammarActor, GrammarTools
from callboard.actors.grammar_statistics import GrammarStatistics
from callboard.actors.sender import Sender
from callboard.errors import EngineFailure, GrammarRefused
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.grammar import (
    Advance,
    ChoiceFormat,
    Compile,
    Constraint,
    GrammarFailed,
    GrammarFormat,
    GrammarReady,
    GrammarToScheduler,
    MatcherFailed,
    Release,
    ToGrammar,
)
from callboard.shm_queue import MaskLayout, MaskRegion, create_mask_region
from callboard.shm_queue.progress import LINE_WORDS, ProgressLine
from callboard.structured_output.llguidance_backend import LLGuidanceBackend, LLGuidanceMatcher
from callboard.structured_output.vocabulary import Vocabulary

EOS = 256
VOCABULARY = Vocabulary([*(bytes([value]) for value in range(256)), b"<end>"], [EOS], [EOS])
CHOICES = ("yes", "yellow", "no")
YES_OR_NO = Constraint(ChoiceFormat(CHOICES))
BAD = Constraint(ChoiceFormat(("bad",)))


class Sandbox:
    """Refuses `BAD`, and counts; `is_broken`: it checks nothing."""

    def __init__(self) -> None:
        self.num_checks = 0
        self.is_broken = False

    async def check(self, constraint: Constraint) -> None:
        self.num_checks += 1
        if constraint == BAD:
            raise GrammarRefused("it is bad")
        if self.is_broken:
            raise EngineFailure("no process starts")

    def start(self) -> None:
        pass

    def kill(self) -> None:
        pass


class Rig:
    """The actor between its inboxes; `expect` waits for what it says."""

    def __init__(self) -> None:
        self.to_scheduler: Inbox[Any] = Inbox(GrammarToScheduler, 64, 1 << 20)
        self.faults, self.sandbox, self.num_loads = Faults(), Sandbox(), 0
        self.cannot_load = False
        layout = MaskLayout(num_rows=4, num_positions=3, vocab_size=257)
        self.region = MaskRegion(layout, create_mask_region(layout))
        self.line = ProgressLine(np.zeros(LINE_WORDS, np.uint64))
        self.actor = GrammarActor(
            "grammar",
            Inbox(ToGrammar, 64, 1 << 20),
            {"scheduler": Sender(LocalOutbox(self.to_scheduler), self.faults)},
            self.load,
            self.region,
            self.line,
            self.faults,
            max_schema_bytes=1000,
        )

    def load(self) -> GrammarTools:
        self.num_loads += 1
        if self.cannot_load:
            raise EngineFailure("no backend")
        return GrammarTools(LLGuidanceBackend(VOCABULARY), self.sandbox)  # type: ignore[arg-type]

    def say(self, *messages: ToGrammar) -> None:
        for message in messages:
            self.actor.handle(message)
        self.actor.flush()

    async def expect(self, *messages: GrammarToScheduler) -> None:
        for message in messages:
            assert await self.to_scheduler.receive() == message

    def advance(
        self, run: int, position: int, text: str, key: str = "", ended: tuple[int, ...] = (), drafts: str = ""
    ) -> None:
        """Of row 2."""
        keys, guesses = {run: key} if key else {}, {run: list(drafts.encode())} if drafts else {}
        self.say(Advance(1, [2], [run], [position], [list(text.encode())], keys, list(ended), guesses))

    def allowed(self, run: int, position: int, num_drafts: int = 0) -> set[int] | None:
        """Tokens that the mask allows behind so many drafts, the last of which is before `position`; None: there is
        none."""
        out = np.zeros((1, 9), np.int32)
        base, at = (np.array([place], np.int32) for place in (position - num_drafts, position))
        found = self.region.read(1, np.array([2], np.int32), np.array([run], np.int64), base, at, out)
        bits = np.unpackbits(out[0].view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist()) if found[0] else None


def _next(text: str) -> set[int]:
    """What may follow, by looking at each choice."""
    longer = {choice.encode()[len(text)] for choice in CHOICES if choice.startswith(text) and choice != text}
    return longer | ({EOS} if text in CHOICES else set())


def _with_rig(scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def run() -> None:
        rig = Rig()
        try:
            await scenario(rig)
        finally:
            rig.actor.close()

    asyncio.run(run())


def compile_message(constraint: Constraint = YES_OR_NO, tokenizer: str = "tokenizer", request_id: str = "r") -> Compile:
    return Compile(constraint.key(), constraint, tokenizer, request_id)


@pytest.mark.slow
def test_drafts_get_masks_as_far_as_the_grammar_goes_and_move_nothing() -> None:
    async def scenario(rig: Rig) -> None:
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        rig.advance(7, 10, "", YES_OR_NO.key(), drafts="ye")
        assert [rig.allowed(7, 10 + n, n) for n in range(3)] == [_next(""), _next("y"), _next("ye")]
        assert rig.allowed(7, 11) is None, "what stands there holds behind that draft alone"
        rig.advance(7, 10, "y", drafts="xs")  # the first is none of the grammar's
        assert rig.allowed(7, 11) == _next("y") and rig.allowed(7, 12, 1) is None
        rig.advance(7, 11, "e", drafts="lx")
        assert [rig.allowed(7, 12 + n, n) for n in range(3)] == [_next("ye"), _next("yel"), None]
        rig.advance(7, 12, "s", drafts=chr(0))  # other tokens than were guessed
        assert rig.allowed(7, 13) == {EOS}

    _with_rig(scenario)


@pytest.mark.slow
def test_drafts_that_are_too_much_work_are_no_fault_of_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = LLGuidanceMatcher.accept

    def limited(self: LLGuidanceMatcher, token_ids: list[int]) -> int:
        if list(token_ids) == [ord("l")]:
            raise GrammarRefused("too much work")
        return accept(self, token_ids)

    monkeypatch.setattr(LLGuidanceMatcher, "accept", limited)

    async def scenario(rig: Rig) -> None:
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        rig.advance(7, 10, "ye", YES_OR_NO.key(), drafts="ll")
        assert rig.allowed(7, 12) == _next("ye") and rig.allowed(7, 13, 1) is None
        rig.advance(7, 12, "s", drafts=chr(0))
        assert rig.allowed(7, 13) == {EOS}
        rig.advance(8, 10, "", YES_OR_NO.key(), drafts="n")
        assert rig.allowed(8, 11, 1) == _next("n"), "another answer has its drafts"

    _with_rig(scenario)


@pytest.mark.slow
def test_masks_follow_the_answer() -> None:
    async def scenario(rig: Rig) -> None:
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        rig.advance(7, 10, "", YES_OR_NO.key())
        assert rig.allowed(7, 10) == _next("") == {ord("y"), ord("n")}
        for count, letter in enumerate("yes"):
            rig.advance(7, 10 + count, letter)
            assert rig.allowed(7, 11 + count) == _next("yes"[: count + 1])
        assert rig.allowed(7, 10) is None, "three positions later its slot is another's"
        rig.advance(7, 13, "")
        assert rig.allowed(7, 13) == {EOS}
        statistics = rig.line.read_statistics(GrammarStatistics)
        assert (statistics.num_masks, statistics.num_compiled, statistics.num_failed) == (5, 1, 0)
        assert 0 < statistics.mask_p50_ns <= statistics.mask_p99_ns

    _with_rig(scenario)


@pytest.mark.slow
def test_a_run_that_takes_over_is_replayed_and_two_runs_do_not_meet() -> None:
    async def scenario(rig: Rig) -> None:
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        rig.advance(7, 10, "ye", YES_OR_NO.key())
        rig.advance(8, 10, "yel", YES_OR_NO.key(), ended=(7,))
        assert rig.allowed(8, 13) == {ord("l")}
        rig.advance(7, 12, "s")  # nobody follows it any more
        (failed,) = [await rig.to_scheduler.receive()]
        assert isinstance(failed, MatcherFailed) and (failed.epoch, failed.run) == (1, 7)
        assert rig.allowed(8, 13) == {ord("l")}, "a run that is over writes nothing"

    _with_rig(scenario)


@pytest.mark.slow
def test_what_the_grammar_does_not_take_ends_that_run_alone() -> None:
    async def scenario(rig: Rig) -> None:
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        key = YES_OR_NO.key()
        rig.say(Advance(1, [1, 2], [5, 6], [3, 3], [[ord("x")], [ord("n")]], {5: key, 6: key}))
        failed = await rig.to_scheduler.receive()
        assert isinstance(failed, MatcherFailed) and (failed.run, failed.status) == (5, 500)
        assert str(ord("x")) in failed.message, "a token that no mask allowed is the engine's fault"
        assert rig.allowed(6, 4) == {ord("o")}

    _with_rig(scenario)


@pytest.mark.slow
def test_each_request_is_answered_and_each_grammar_compiled_once() -> None:
    async def scenario(rig: Rig) -> None:
        rig.say(compile_message(), compile_message(tokenizer="other"), compile_message(BAD))
        answers = {type(await rig.to_scheduler.receive()) for _ in range(2)}
        assert answers == {GrammarReady, GrammarFailed}
        rig.say(compile_message(), compile_message(BAD))
        await rig.expect(GrammarReady(YES_OR_NO.key()), GrammarFailed(BAD.key(), "it is bad"))
        assert (rig.sandbox.num_checks, rig.num_loads) == (2, 1)
        rig.say(Release(YES_OR_NO.key(), "tokenizer"), Release(YES_OR_NO.key(), "unknown"))
        rig.actor.gone("other")
        rig.advance(7, 0, "no", YES_OR_NO.key())
        assert rig.allowed(7, 2) == {EOS}, "what is not used stays for a while"

    _with_rig(scenario)


@pytest.mark.slow
def test_a_dead_schedulers_runs_are_forgotten() -> None:
    async def scenario(rig: Rig) -> None:
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        rig.advance(7, 10, "ye", YES_OR_NO.key())
        rig.actor.gone("scheduler")
        rig.advance(7, 10, "no", YES_OR_NO.key())
        assert rig.allowed(7, 12) == {EOS}, "the number of a run may come again in another life"

    _with_rig(scenario)


@pytest.mark.slow
def test_a_run_whose_grammar_was_forgotten_waits_until_it_is_compiled_anew() -> None:
    async def scenario(rig: Rig) -> None:
        rig.advance(7, 10, "ye", YES_OR_NO.key())  # the scheduler remembers that it was ready once
        rig.advance(8, 10, "", BAD.key())
        rig.advance(9, 10, "ye", YES_OR_NO.key())
        rig.say(Advance(1, [], [], [], [], ended=[9]))
        assert rig.allowed(7, 12) is None
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        assert rig.allowed(7, 12) == _next("ye")
        assert rig.allowed(9, 12) is None, "a run that has ended meanwhile gets no matcher"
        rig.advance(7, 12, "l")
        assert rig.allowed(7, 13) == _next("yel")
        rig.say(compile_message(BAD))
        await rig.expect(GrammarFailed(BAD.key(), "it is bad"))
        failed = await rig.to_scheduler.receive()
        assert isinstance(failed, MatcherFailed) and failed.run == 8 and "it is bad" in failed.message
        assert failed.status == 400

    _with_rig(scenario)


@pytest.mark.slow
def test_a_failure_of_the_engine_is_not_the_clients_and_the_next_request_tries_again() -> None:
    async def scenario(rig: Rig) -> None:
        rig.sandbox.is_broken = True
        rig.say(compile_message(), compile_message(request_id="other"))
        await rig.expect(GrammarFailed(YES_OR_NO.key(), "no process starts", 500, ["r", "other"]))
        rig.say(compile_message(request_id="third"))
        await rig.expect(GrammarFailed(YES_OR_NO.key(), "no process starts", 500, ["third"]))
        rig.sandbox.is_broken = False
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))

    _with_rig(scenario)


@pytest.mark.slow
def test_a_backend_that_did_not_load_is_loaded_again_for_the_next_request() -> None:
    async def scenario(rig: Rig) -> None:
        rig.cannot_load = True
        rig.say(compile_message())
        await rig.expect(GrammarFailed(YES_OR_NO.key(), "no backend", 500, ["r"]))
        rig.cannot_load = False
        rig.say(compile_message())
        await rig.expect(GrammarReady(YES_OR_NO.key()))
        assert rig.num_loads == 2

    _with_rig(scenario)


@pytest.mark.slow
def test_a_grammar_that_leads_nowhere_is_the_clients() -> None:
    nowhere = Constraint(GrammarFormat('start: "a" B\nB: /a/ & /b/'))

    async def scenario(rig: Rig) -> None:
        rig.say(compile_message(nowhere))
        await rig.expect(GrammarReady(nowhere.key()))
        rig.advance(7, 10, "a", nowhere.key())
        failed = await rig.to_scheduler.receive()
        assert isinstance(failed, MatcherFailed) and (failed.run, failed.status) == (7, 400)
        assert "allows no text" in failed.message

    _with_rig(scenario)
