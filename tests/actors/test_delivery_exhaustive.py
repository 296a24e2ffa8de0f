"""Every order in which a small engine's acts can come: with one death of anyone at any point, aborts, lost messages.

The acts of `World` are replayed from the start for every state, for actors cannot be copied; states that were seen
are not gone into again. A message that arrives is handled at once, and mailboxes have room: full ones are the matter of
the random runs in test_delivery.py.
"""

from __future__ import annotations

import asyncio
import time
from random import Random

import msgspec
import pytest

from callboard.mailbox.messages.sampling import SamplingParams
from callboard.tests.actors.delivery_checks import check_at_rest
from callboard.tests.actors.delivery_fingerprint import fingerprint
from callboard.tests.actors.delivery_world import Act, World
from callboard.tests.scheduling.fake_worker import make_limits


class Config(msgspec.Struct, frozen=True):
    """What is there, and how much may happen to it."""

    requests: tuple[tuple[str, SamplingParams], ...]
    num_deaths: int
    num_aborts: int
    num_blocks: int = 3


class Found(msgspec.Struct):
    """What a search has seen."""

    num_states: int = 0
    num_ends: int = 0
    num_replays: int = 0
    is_complete: bool = False
    failures: list[tuple[str, tuple[Act, ...]]] = []


def make_world(config: Config) -> World:
    limits = make_limits(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        num_blocks=config.num_blocks,
        block_size=2,
        max_model_len=8,
        resume_grace_s=1e6,
        prefix_caching=False,
    )
    world = World(
        limits, 1000, num_deaths=config.num_deaths, num_aborts=config.num_aborts, turns_by_itself=True
    )
    for prompt, sampling in config.requests:
        world.submit(prompt, sampling)
    return world


async def search(config: Config, max_states: int, seed: int = 0) -> Found:
    """Depth first, in an order drawn with `seed`, until `max_states` states are seen or none is left."""
    random = Random(seed)
    found = Found()
    seen: set[int] = set()
    paths: list[tuple[Act, ...]] = [()]
    while paths and len(seen) < max_states:
        path = paths.pop()
        found.num_replays += 1
        world = make_world(config)
        try:
            for index, act in enumerate(path):
                await world.act(act, is_checked=index == len(path) - 1)
            while True:
                state = fingerprint(world)
                if state in seen:
                    break
                seen.add(state)
                acts = world.possible(is_ending=False)
                if not [act for act in acts if act[0] not in ("kill", "close", "deadline")]:
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
        except Exception as error:
            found.failures.append((f"{type(error).__name__}: {error}", path))
            if len(found.failures) > 10: break
        finally:
            world.close()
    found.num_states, found.is_complete = len(seen), not paths
    return found


ONE = (("ab", SamplingParams(seed=1, max_tokens=2)),)
TWO = (("ab", SamplingParams(seed=1, max_tokens=1)), ("c", SamplingParams(seed=1, max_tokens=2)))


@pytest.mark.parametrize(
    "config",
    [Config(ONE, 1, 0), Config(ONE, 1, 1), Config(TWO, 1, 0)],
    ids=["1 request, 1 death", "1 request, 1 death, 1 abort", "2 requests, 1 death"],
)
def test_no_order_loses_anything(config: Config, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    found = asyncio.run(search(config, 3000))
    with capsys.disabled():
        print(
            f"\n{len(config.requests)} requests, {config.num_deaths} deaths, {config.num_aborts} aborts: "
            f"{found.num_states:,} states, {found.num_ends:,} ends, {found.num_replays:,} replays, "
            f"{'complete' if found.is_complete else 'capped'}, {time.monotonic() - started:.1f} s"
        )
    assert not found.failures, found.failures[0]
