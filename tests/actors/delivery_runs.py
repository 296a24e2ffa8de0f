"""A `World` from its first request to its rest, with acts in an order drawn from a seed."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec

from callboard.mailbox.messages.sampling import RepetitionDetection, SamplingParams
from callboard.scheduling.limits import PolicyName
from callboard.tests.actors.delivery_checks import check_at_rest
from callboard.tests.actors.delivery_world import TROUBLES, Act, World
from callboard.tests.scheduling.fake_worker import make_limits

MAX_PROMPT = 16
"""Tokens; with as many more they fit the model's length: é is two of them."""
MAX_OUTPUT = 16
STOPS = ("a", "ab", "bca", "c ", "é", "bb")
REPETITION = RepetitionDetection(max_pattern_size=2)
_EAGERNESS = (1, 4, 16)


class Request(msgspec.Struct, frozen=True):
    """What `World.submit` takes."""

    prompt: str
    sampling: SamplingParams
    frontend: int = 0
    num_choices: int = 1
    returns_prompt: bool = False
    raises_at: int | None = None
    priority: int = 0


class Case(msgspec.Struct, frozen=True):
    """One engine, what comes to it, and how much trouble."""

    requests: tuple[Request, ...]
    seed: int
    num_acts: int
    trouble: float
    """The chance that an act is a death, an end by client or frontend, a step that raises, or the end of a grace."""
    num_blocks: int = 40
    capacity: int = 1000
    max_queued_requests: int = 1000
    num_frontends: int = 1
    num_deaths: int = 0
    num_stumbles: int = 0
    turns_by_itself: bool = False
    policy: PolicyName = "fcfs"


def run(case: Case) -> None:
    """Raises what is found."""
    asyncio.run(_run(case))


async def _run(case: Case) -> None:
    limits = make_limits(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        num_blocks=case.num_blocks,
        block_size=4,
        max_model_len=MAX_PROMPT + MAX_OUTPUT,
        resume_grace_s=1e6,
        max_queued_requests=case.max_queued_requests,
        policy=case.policy,
    )
    world = World(
        limits,
        case.capacity,
        num_frontends=case.num_frontends,
        num_deaths=case.num_deaths,
        num_stumbles=case.num_stumbles,
        turns_by_itself=case.turns_by_itself,
    )
    random = Random(case.seed)
    eagerness: dict[str, int] = {}
    coming = list(reversed(case.requests))
    try:
        for _ in range(case.num_acts):
            acts = world.possible(is_ending=False) + [("submit",)] * bool(coming)
            if world.is_at_rest(acts):
                break
            act = _draw(random, acts, eagerness, case.trouble)
            if act[0] == "submit":
                request = coming.pop()
                world.submit(*[getattr(request, name) for name in request.__struct_fields__])
            else:
                await world.act(act)
        await world.finish()
        check_at_rest(world)
    finally:
        world.close()


def _draw(random: Random, acts: list[Act], eagerness: dict[str, int], trouble: float) -> Act:
    """A kind of act by its eagerness, then one of them."""
    by_kind: dict[str, list[Act]] = {}
    is_trouble = random.random() < trouble
    for act in acts:
        if (act[0] in TROUBLES) == is_trouble:
            by_kind.setdefault(act[0], []).append(act)
    if not by_kind:
        return _draw(random, acts, eagerness, trouble=0 if is_trouble else 1)
    for kind in by_kind:
        if kind not in eagerness:
            eagerness[kind] = random.choice(_EAGERNESS)
    (kind,) = random.choices(list(by_kind), [eagerness[kind] for kind in by_kind])
    return random.choice(by_kind[kind])


def random_case(seed: int) -> Case:
    """Few requests and much trouble: what finds most for its time. The seed is all that it depends on."""
    random = Random(seed)
    return Case(
        requests=tuple(_random_request(random) for _ in range(random.choice((1, 1, 2, 3)))),
        seed=seed,
        num_acts=1000,
        trouble=random.choice((0.02, 0.05, 0.1, 0.2)),
        num_blocks=random.choice((8, 10, 16, 40)),
        capacity=random.choice((1, 2, 1000, 1000)),
        num_frontends=random.choice((1, 1, 2)),
        num_deaths=random.choice((1, 1, 2, 3)),
        num_stumbles=random.choice((0, 0, 0, 2)),
        turns_by_itself=random.random() < 0.8,
        policy=random.choice(("fcfs", "priority")),
    )


def _random_request(random: Random) -> Request:
    return Request(
        "".join(random.choice("abc é") for _ in range(random.randint(1, MAX_PROMPT // 2))),
        SamplingParams(
            seed=1,
            max_tokens=random.choice((1, 2, 4, 8, MAX_OUTPUT)),
            stop=tuple(random.sample(STOPS, random.choice((0, 1, 2)))),
            ignore_eos=random.random() < 0.5,
            logprobs=random.choice((None, None, 1)),
            min_tokens=random.choice((0, 0, 0, 2, 5)),
            stop_token_ids=random.choice(((), (), (4,), (0, 6))),
            include_stop_str_in_output=random.random() < 0.3,
            prompt_logprobs=random.choice((None, None, 2)),
            repetition_detection=random.choice((None, None, REPETITION)),
        ),
        frontend=random.randrange(2),
        num_choices=random.choice((1, 1, 2)),
        returns_prompt=random.random() < 0.5,
        raises_at=random.choice((None,) * 15 + (2,)),
        priority=random.choice((0, 0, 1)),
    )
