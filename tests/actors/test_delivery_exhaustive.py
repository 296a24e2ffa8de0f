"""Every order in which a small engine's acts can come: with a death of anyone at any point, aborts, lost messages.

For every state the acts that lead to it are replayed from the start, for actors cannot be copied; a state that was seen
is not gone into again. A message that arrives is handled at once, and mailboxes have room: full ones are the matter of
the random runs in test_delivery.py.
"""

from __future__ import annotations

import asyncio
import time
from random import Random

import msgspec
import pytest

from callboard.errors import CallboardError
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.actors.delivery_checks import check_at_rest
from callboard.tests.actors.delivery_fingerprint import fingerprint
from callboard.tests.actors.delivery_parts import make_tokenizer, true_answer
from callboard.tests.actors.delivery_runs import Request
from callboard.tests.actors.delivery_world import TROUBLES, Act, World
from callboard.tests.actors.planted_faults import a_death_of_the_frontend_is_ignored
from callboard.tests.scheduling.fake_model import true_end
from callboard.tests.scheduling.fake_worker import make_admit, make_limits

LENGTH = Request("ab", SamplingParams(seed=1, max_tokens=2))
STOP = Request("c", SamplingParams(seed=1, max_tokens=3, stop=("bc",)))
"""Its stop string begins in one token, which is held back, and ends in the next."""
PROMPT = Request("ca", SamplingParams(seed=1, max_tokens=2, min_tokens=1, prompt_logprobs=1))
"""Its first delta carries the prompt's log-probabilities, which the scheduler does not keep."""
ANSWERS = {LENGTH: ([1, 4], "aab", "length", None), STOP: ([2, 5], "b", "stop", "bc")}


class Config(msgspec.Struct, frozen=True):
    """What is there, and how much may happen to it."""

    requests: tuple[Request, ...]
    num_deaths: int
    num_aborts: int

    def __str__(self) -> str:
        return f"{len(self.requests)} requests, {self.num_deaths} deaths, {self.num_aborts} aborts"


class Found(msgspec.Struct):
    """What a search has seen."""

    num_states: int = 0
    num_ends: int = 0
    """States in which only trouble could still happen, each checked at rest."""
    num_replays: int = 0
    is_complete: bool = False
    failure: str = ""
    """The first, with the acts that lead to it."""


def limits() -> SchedulerLimits:
    return make_limits(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        num_blocks=3,
        block_size=2,
        max_model_len=8,
        resume_grace_s=1e6,
        prefix_caching=False,
    )


async def search(config: Config, max_states: int) -> Found:
    """Depth first, until `max_states` states were seen, none is left, or something is wrong."""
    random = Random(0)
    found = Found()
    seen: set[int] = set()
    paths: list[tuple[Act, ...]] = [()]
    while paths and len(seen) < max_states and not found.failure:
        found.num_replays += 1
        world = World(limits(), 1000, num_deaths=config.num_deaths, num_aborts=config.num_aborts, turns_by_itself=True)
        path = paths.pop()
        try:
            for request in config.requests:
                world.submit(request.prompt, request.sampling)
            for index, act in enumerate(path):
                await world.act(act, is_checked=index == len(path) - 1)
            while (state := fingerprint(world)) not in seen:
                seen.add(state)
                acts = world.possible(is_ending=False)
                if all(act[0] in TROUBLES and act[0] != "pass_grace" for act in acts):
                    found.num_ends += 1
                    paths += [(*path, act) for act in acts]
                    await world.finish()
                    check_at_rest(world)
                    break
                random.shuffle(acts)
                act = acts.pop()
                paths += [(*path, other) for other in acts]
                path = (*path, act)
                await world.act(act)
        except (AssertionError, CallboardError) as error:
            found.failure = f"{type(error).__name__}: {error}, after {path}"
        finally:
            world.close()
    found.num_states, found.is_complete = len(seen), not paths
    return found


def run(config: Config, max_states: int, capsys: pytest.CaptureFixture[str]) -> Found:
    """Search, say what was seen."""
    started = time.monotonic()
    found = asyncio.run(search(config, max_states))
    with capsys.disabled():
        print(
            f"\n{config}: {found.num_states:,} states, {found.num_ends:,} ends, {found.num_replays:,} replays, "
            f"{'complete' if found.is_complete else 'capped'}, {time.monotonic() - started:.1f} s"
        )
    assert not found.failure, found.failure
    return found


@pytest.mark.parametrize("request_", ANSWERS, ids=["length", "stop"])
def test_the_answers_are_what_the_configurations_need(request_: Request) -> None:
    prompt = make_tokenizer().encode(request_.prompt, add_special_tokens=True)
    admit = make_admit("any", prompt, max_tokens=request_.sampling.max_tokens)
    assert true_answer(*true_end(admit, limits()), request_.sampling) == ANSWERS[request_]


@pytest.mark.slow
def test_every_order_around_one_death(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(Config((LENGTH,), 1, 0), 10_000, capsys)
    assert found.is_complete and found.num_states > 1000 and found.num_ends >= 5


@pytest.mark.slow
@pytest.mark.parametrize("config", [Config((STOP,), 1, 1), Config((LENGTH, PROMPT), 1, 0)], ids=str)
def test_some_orders_around_one_death(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    run(config, 500, capsys)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "config",
    [Config((LENGTH,), 1, 1), Config((STOP,), 1, 0), Config((PROMPT,), 1, 0)],
    ids=["length", "stop", "prompt"],
)
def test_every_order_around_one_death_and_an_abort(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(config, 1_000_000, capsys).is_complete


@pytest.mark.nightly
@pytest.mark.parametrize(
    "config", [Config((STOP,), 1, 1), Config((LENGTH, STOP), 1, 0), Config((STOP,), 2, 0)], ids=str
)
def test_many_orders_around_deaths(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    run(config, 20_000, capsys)


@pytest.mark.slow
def test_a_rule_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    a_death_of_the_frontend_is_ignored(monkeypatch)
    found = asyncio.run(search(Config((LENGTH,), 1, 0), 10_000))
    assert found.failure
