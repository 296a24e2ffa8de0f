"""The scheduler under random admissions, results, stops, aborts, resumes, failed steps and deaths, in tiny pools."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from callboard.errors import ProtocolViolation
from callboard.kv_cache.block_pool import BlockPool
from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.sampling import RepetitionDetection
from callboard.mailbox.messages.steps import StepResult
from callboard.scheduling import failures
from callboard.scheduling.deltas import Outbox
from callboard.scheduling.ledger import PreemptionCause
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.request import Request
from callboard.scheduling.state import SchedulerState
from callboard.scheduling.step_log import StepLog
from callboard.scheduling.trial import Trial
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_model import truth
from callboard.tests.scheduling.fake_worker import Key, make_admit, make_limits

TOKENIZERS = ("tokenizer.0", "tokenizer.1")
PREFIXES = ([], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [2] * 11)

tiny_limits = st.builds(
    make_limits,
    max_num_seqs=st.integers(1, 4),
    max_num_batched_tokens=st.sampled_from([1, 2, 5, 16, 64]),
    long_prefill_token_threshold=st.sampled_from([0, 0, 1, 4]),
    pipeline_depth=st.integers(1, 3),
    watermark=st.sampled_from([0.0, 0.0, 0.2]),
    max_queued_requests=st.sampled_from([2, 100]),
    num_blocks=st.integers(2, 12),
    block_size=st.sampled_from([1, 2, 4]),
    prefix_caching=st.booleans(),
    max_model_len=st.sampled_from([12, 30]),
    max_plan_tokens=st.sampled_from([None, 8]),
    resume_grace_s=st.sampled_from([5e-9, 50e-9]),
    policy=st.sampled_from(["fcfs", "priority"]),
)

prompts = st.builds(
    lambda prefix, rest: prefix + rest, st.sampled_from(PREFIXES), st.lists(st.integers(1, 3), min_size=1, max_size=5)
)
admissions = st.fixed_dictionaries(
    {
        "prompt": prompts,
        "max_tokens": st.integers(1, 12),
        "ignore_eos": st.booleans(),
        "cache_salt": st.sampled_from(["", "", "salt"]),
        "logprobs": st.sampled_from([None, None, 0, 2]),
        "tokenizer": st.sampled_from(TOKENIZERS),
        "min_tokens": st.sampled_from([0, 0, 1, 4]),
        "stop_token_ids": st.sampled_from([(), (), (5,), (0, 7)]),
        "prompt_logprobs": st.sampled_from([None, None, 0, 2]),
        "repetition_detection": st.sampled_from([None, None, RepetitionDetection(2), RepetitionDetection(3, 2, 2)]),
        "priority": st.integers(-1, 1),
        "arrival_ns": st.integers(0, 3),
    }
)
faults = st.one_of(st.none(), st.none(), st.tuples(st.sampled_from(["raises", "raises", "kills"]), st.integers(0, 12)))
"""What a request does to its worker, and at which position."""


def num_steady_and_overlapped(engine: Engine) -> tuple[int, int]:
    """Brute-force twin of the step log: all pairs of neighbouring plans of one epoch whose first has a result."""
    steady = overlapped = 0
    for plan, following in zip(engine.planned, engine.planned[1:], strict=False):
        if plan.epoch == following.epoch and plan.step in engine.had_successor and plan.runs == following.runs:
            steady += 1
            overlapped += engine.had_successor[plan.step]
    return steady, overlapped


class SchedulerMachine(RuleBasedStateMachine):
    """Events in any order; each invariant holds after each of them."""

    engine: Engine

    @initialize(limits=tiny_limits, is_attached=st.sampled_from([True, True, True, False]))
    def start(self, limits: SchedulerLimits, is_attached: bool) -> None:
        """Mostly with a worker: without one nothing runs until `attach_worker` is drawn."""
        self.engine = Engine(limits, is_attached=is_attached)
        self.num_admitted = 0
        self.num_resumed: dict[Key, int] = {}
        """Tokens with which a request came to a scheduler that did not know it."""

    def live(self) -> list[Key]:
        """Requests that their clients wait for, and that have not to be resumed first."""
        clients = self.engine.clients.items()
        return [key for key, client in clients if client.is_live and not client.is_orphan]

    def orphans(self) -> list[Key]:
        clients = self.engine.clients.items()
        return [key for key, client in clients if client.is_live and client.is_orphan]

    @rule(wanted=st.lists(admissions, min_size=1, max_size=3), num_choices=st.integers(1, 2), fault=faults)
    def admit(self, wanted: list[dict[str, object]], num_choices: int, fault: tuple[str, int] | None) -> None:
        """New requests; the last of them may be a bad one."""
        admits: list[Admit] = []
        for fields in wanted:
            self.num_admitted += 1
            for choice in range(num_choices):
                admits.append(make_admit(f"request {self.num_admitted}", choice=choice, **fields))  # type: ignore[arg-type]
        if fault is not None:
            positions = self.engine.raises if fault[0] == "raises" else self.engine.kills
            positions[admits[-1].request_id, admits[-1].choice] = fault[1]
        self.engine.admit(*admits)

    @precondition(lambda self: self.engine.plans)
    @rule()
    def work(self) -> None:
        self.engine.work()

    @precondition(lambda self: self.engine.results)
    @rule()
    def deliver(self) -> None:
        self.engine.deliver()

    @rule(steps=st.integers(1, 6))
    def run_steps(self, steps: int) -> None:
        for _ in range(steps):
            if self.engine.plans:
                self.engine.work()
            if self.engine.results:
                self.engine.deliver()

    @precondition(lambda self: self.live())
    @rule(data=st.data(), offset=st.integers(-1, 1))
    def stop(self, data: st.DataObject, offset: int) -> None:
        """A tokenizer stops one choice; an older attempt's Stop changes nothing."""
        key = data.draw(st.sampled_from(self.live()))
        client = self.engine.clients[key]
        client.is_ended_here = offset >= 0
        self.engine.pump(Stop(key[0], key[1], client.attempt + offset, max(0, len(client.token_ids) - 1)))

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        """A client goes away: every choice of the request ends."""
        request_id = data.draw(st.sampled_from(self.live()))[0]
        attempts = [client.attempt for key, client in self.engine.clients.items() if key[0] == request_id]
        for key, client in self.engine.clients.items():
            if key[0] == request_id and client.finish is None:
                client.is_ended_here = True
        self.engine.pump(Abort(request_id, max(attempts), "client"))

    @precondition(lambda self: self.live())
    @rule(data=st.data(), keeps=st.booleans())
    def take_over(self, data: st.DataObject, keeps: bool) -> None:
        """A newer attempt, with all or less of what the client has; then a late repeat of the old one, which is dropped
        as long as the scheduler knows the request."""
        key = data.draw(st.sampled_from(self.live()))
        client = self.engine.clients[key]
        had = self.num_resumed.get(key, 0)
        self.engine.resume(key, data.draw(st.sampled_from(TOKENIZERS)), None if keeps else had)
        if self.engine.scheduler._state.find(*key) is not None:
            self.engine.pump(client.admit)

    @rule(tokenizer=st.sampled_from(TOKENIZERS))
    def lose_tokenizer(self, tokenizer: str) -> None:
        self.engine.lose_tokenizer(tokenizer)

    @rule(tokenizer=st.sampled_from(TOKENIZERS))
    def block_or_unblock(self, tokenizer: str) -> None:
        self.engine.blocked ^= {tokenizer}
        self.engine.pump()

    @rule()
    def lose_scheduler(self) -> None:
        self.engine.lose_scheduler()

    @precondition(lambda self: self.orphans())
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        self.resume_one(data.draw(st.sampled_from(self.orphans())), data.draw(st.sampled_from(TOKENIZERS)))

    def resume_one(self, key: Key, tokenizer: str) -> None:
        """By a scheduler that knows the request, or that does not."""
        if self.engine.scheduler._state.find(*key) is None:
            self.num_resumed[key] = len(self.engine.clients[key].token_ids)
        self.engine.resume(key, tokenizer)

    @precondition(lambda self: self.engine.worker is not None)
    @rule()
    def fail_next(self) -> None:
        """A step fails, and nobody is to blame."""
        assert self.engine.worker is not None
        self.engine.worker.num_to_fail = 1

    @precondition(lambda self: self.engine.worker is not None)
    @rule()
    def lose_worker(self) -> None:
        self.engine.lose_worker()

    @rule()
    def attach_worker(self) -> None:
        if self.engine.worker is None:
            self.engine.attach()

    @invariant()
    def everything_has_an_owner(self) -> None:
        if hasattr(self, "engine"):
            assert self.engine.scheduler.check_integrity() == []
            statistics = self.engine.scheduler.statistics()
            num_known = statistics.num_running + statistics.num_waiting
            assert num_known <= len(self.live()) + len(self.orphans())
            assert num_known >= len(self.live()) or self.engine.blocked, "a request was forgotten"
            assert (statistics.num_steady_steps, statistics.num_overlapped_steps) == num_steady_and_overlapped(
                self.engine
            )

    @invariant()
    def tokens_are_true_so_far(self) -> None:
        if hasattr(self, "engine"):
            for client in self.engine.clients.values():
                expected, _ = truth(client.admit, self.engine.limits)
                assert client.token_ids == expected[: len(client.token_ids)]

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            if self.engine.worker is None:
                self.engine.attach()
            self.engine.blocked.clear()
            self.engine.pump()
            for key in self.orphans():
                self.resume_one(key, "tokenizer.0")
            self.engine.run()
            self.engine.check_all_served()
            self.everything_has_an_owner()


SchedulerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSchedulerMachine = pytest.mark.slow(SchedulerMachine.TestCase)


bad_requests = st.tuples(admissions, st.one_of(st.none(), st.integers(0, 12)))
"""A request, and the position of its own that it does not survive."""


def check_only_the_bad_end(
    limits: SchedulerLimits, wanted: list[tuple[dict[str, object], int | None]], has_killer: bool
) -> None:
    """Requests with a bad position make each step fail that computes it; if `has_killer`, the first of them kills the
    worker instead. They end with an error before that position, all others have their answers."""
    engine = Engine(limits)
    admits = [
        make_admit(f"request {index}", **fields | {"cache_salt": f"{index}"})  # type: ignore[arg-type]
        for index, (fields, _) in enumerate(wanted)  # salted, or a bad position may be found in the cache and survived
    ]
    bad = {(admit.request_id, 0): at for admit, (_, at) in zip(admits, wanted, strict=True) if at is not None}
    for key in list(bad)[:has_killer]:
        engine.kills[key] = bad[key]
    engine.raises |= {key: at for key, at in bad.items() if key not in engine.kills}
    engine.admit(*admits)
    engine.run(max_steps=1000)
    engine.check_all_served()
    num_errors = 0
    for key, client in engine.clients.items():
        output = truth(client.admit, limits)[0]
        num_computed = len(client.admit.prompt_token_ids) + len(output) - 1 if output else 0
        assert client.finish is not None
        assert (client.finish.reason == "error") == (bad.get(key, num_computed) < num_computed)
        num_errors += client.finish.reason == "error"
    statistics = engine.scheduler.statistics()
    assert statistics.num_poisoned == num_errors
    assert engine.scheduler.check_integrity() == [] and statistics.num_finished == len(wanted)


@given(tiny_limits, st.lists(bad_requests, min_size=1, max_size=6), st.booleans())
@settings(max_examples=60, deadline=None)
def test_only_the_bad_end(
    limits: SchedulerLimits, wanted: list[tuple[dict[str, object], int | None]], has_killer: bool
) -> None:
    check_only_the_bad_end(msgspec.structs.replace(limits, max_queued_requests=100), wanted, has_killer)


def check_taken_over(
    limits: SchedulerLimits, wanted: list[dict[str, object]], num_steps: int, keeps: bool, has_death: bool
) -> None:
    """After some steps every live request is resumed by a client that has all its tokens, or none of them; if
    `has_death`, because a tokenizer died that took nothing."""
    engine = Engine(msgspec.structs.replace(limits, max_queued_requests=100))
    engine.admit(*(make_admit(f"request {index}", **fields) for index, fields in enumerate(wanted)))  # type: ignore[arg-type]
    if has_death:
        engine.blocked.add(TOKENIZERS[0])
    for _ in range(num_steps):
        if engine.plans:
            engine.run_step()
    if has_death:
        engine.lose_tokenizer(TOKENIZERS[0])
        engine.blocked.clear()
        engine.pump()
    for key, client in engine.clients.items():
        if client.is_live:
            engine.resume(key, TOKENIZERS[1], None if keeps else 0)
    engine.run()
    engine.check_all_served()
    assert engine.scheduler.check_integrity() == []


taken_over = given(
    tiny_limits, st.lists(admissions, min_size=1, max_size=4), st.integers(1, 12), st.booleans(), st.booleans()
)


@taken_over
@settings(max_examples=60, deadline=None)
def test_taken_over_requests_get_their_answers(
    limits: SchedulerLimits, wanted: list[dict[str, object]], num_steps: int, keeps: bool, has_death: bool
) -> None:
    check_taken_over(limits, wanted, num_steps, keeps, has_death)


# The properties can fail: each of these faults is found ---------------------------------------------------------------


def reuses_run_numbers(patch: pytest.MonkeyPatch) -> None:
    start = SchedulerState.start

    def faulty(self: SchedulerState, request: Request) -> None:
        self._last_run = next(run for run in range(1000) if run + 1 not in self.running)
        start(self, request)

    patch.setattr(SchedulerState, "start", faulty)


def keeps_the_prefix_cache_of_a_failed_step(patch: pytest.MonkeyPatch) -> None:
    fail_step = failures.fail_step

    def faulty(state: SchedulerState, result: StepResult) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(BlockPool, "forget_keys", lambda self: None)
            fail_step(state, result)

    patch.setattr(failures, "fail_step", faulty)


def takes_void_steps_for_run(patch: pytest.MonkeyPatch) -> None:
    """Only what stood in the failed step goes back; the steps behind it count as if they had been run."""
    fail = StepLog.fail
    failed: set[Key] = set()

    def note(self: StepLog, step: int) -> object:
        requests = fail(self, step)
        failed.clear()
        failed.update(request.key for request in requests)
        return requests

    def faulty(state: SchedulerState, cause: PreemptionCause) -> None:
        for request in reversed(list(state.running.values())):
            if request.key in failed:
                state.preempt(request, cause)
        state.pool.forget_keys()
        state.rows.forget_removed()

    patch.setattr(StepLog, "fail", note)
    patch.setattr(failures, "roll_back", faulty)


def blames_the_first_of_the_failed_step(patch: pytest.MonkeyPatch) -> None:
    fail = StepLog.fail
    patch.setattr(StepLog, "fail", lambda self, step: list(fail(self, step))[:1])


def tries_the_same_group_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Trial, "split", lambda self, keys: self._try_first([keys]))


def speaks_to_a_dead_tokenizer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "forget", lambda self, tokenizer: None)


def resends_one_too_few(patch: pytest.MonkeyPatch) -> None:
    resend = Outbox.resend
    patch.setattr(Outbox, "resend", lambda self, request, position=0: resend(self, request, position + 1))


def forgets_who_was_in_flight(patch: pytest.MonkeyPatch) -> None:
    """A request kills one worker after the other."""
    patch.setattr(StepLog, "requests_in_flight", lambda self: ())


FOUND = (AssertionError, ProtocolViolation, KeyError)
SEARCH = settings(
    SchedulerMachine.TestCase.settings,
    max_examples=2000,
    phases=[Phase.generate],
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
)
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.slow
def test_a_planted_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reuses_run_numbers(monkeypatch)
    with pytest.raises(FOUND):
        run_state_machine_as_test(SchedulerMachine, settings=SEARCH)


@pytest.mark.parametrize("plant", [speaks_to_a_dead_tokenizer, resends_one_too_few])
def test_a_planted_fault_in_what_is_sent_again_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(FOUND):
        SEARCH(taken_over(check_taken_over))()


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        keeps_the_prefix_cache_of_a_failed_step,
        takes_void_steps_for_run,
        blames_the_first_of_the_failed_step,
        tries_the_same_group_for_ever,
        forgets_who_was_in_flight,
    ],
)
def test_a_planted_fault_in_the_search_for_the_bad_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    search = given(tiny_limits, st.lists(bad_requests, min_size=1, max_size=6), st.booleans())(check_only_the_bad_end)
    with pytest.raises(FOUND):
        SEARCH(search)()


@given(tiny_limits, st.lists(admissions, min_size=1, max_size=6), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_depth_changes_no_token(limits: SchedulerLimits, wanted: list[dict[str, object]], early: int) -> None:
    outputs = []
    for depth in (1, 2, 3):
        fields = {name: getattr(limits, name) for name in limits.__struct_fields__}
        engine = Engine(SchedulerLimits(**fields | {"pipeline_depth": depth, "max_queued_requests": 100}))
        admits = [make_admit(f"request {index}", **fields) for index, fields in enumerate(wanted)]  # type: ignore[arg-type]
        for admit in admits[:early]:
            engine.admit(admit)
            if engine.plans:
                engine.run_step()
        engine.admit(*admits[early:])
        engine.run()
        engine.check_all_served()
        outputs.append(
            [(client.token_ids, client.finish and client.finish.reason) for client in engine.clients.values()]
        )
    assert outputs[0] == outputs[1] == outputs[2]
