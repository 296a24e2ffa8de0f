"""The scheduler under random admissions, results, stops, aborts, takeovers and deaths of the worker, in tiny pools."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.requests import Abort
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.fake_worker import Engine, make_admit, make_limits, truth

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
        "tokenizer": st.sampled_from(["tokenizer.0", "tokenizer.1"]),
    }
)


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

    @initialize(limits=tiny_limits)
    def start(self, limits: SchedulerLimits) -> None:
        self.engine = Engine(limits, is_attached=False)
        self.num_admitted = 0

    def live(self) -> list[tuple[str, int]]:
        clients = self.engine.clients.items()
        return [key for key, client in clients if client.finish is None and not client.is_ended_here]

    @rule(wanted=st.lists(admissions, min_size=1, max_size=3), num_choices=st.integers(1, 2))
    def admit(self, wanted: list[dict[str, object]], num_choices: int) -> None:
        admits: list[Admit] = []
        for fields in wanted:
            self.num_admitted += 1
            for choice in range(num_choices):
                admits.append(make_admit(f"request {self.num_admitted}", choice=choice, **fields))  # type: ignore[arg-type]
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
        """A newer attempt, with or without what the client has; then a late repeat of the old one, which is dropped."""
        key = data.draw(st.sampled_from(self.live()))
        client = self.engine.clients[key]
        old = client.admit
        client.attempt += 1
        if not keeps:
            client.token_ids = []
        newer = Admit(**{name: getattr(old, name) for name in old.__struct_fields__} | {"attempt": client.attempt})
        self.engine.pump(newer)
        self.engine.pump(newer, old)

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
            assert statistics.num_running + statistics.num_waiting == len(self.live())
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
            self.engine.run()
            self.engine.check_all_served()
            self.everything_has_an_owner()


SchedulerMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestSchedulerMachine = pytest.mark.slow(SchedulerMachine.TestCase)


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
