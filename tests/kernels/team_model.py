"""A model of the meeting of `kernels/cpu/team.py`: each atomic access of each thread is a step, and every order of
them is gone through.

Thread 0 runs twice, `NUM_PHASES` phases of `NUM_PARTS` parts each; the others are rung for each run, and may come at
any time, or never. A fault is a part that is done twice or too early or not at all, and a thread that nobody wakes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

NUM_RUNS, NUM_PHASES, NUM_PARTS = 2, 2, 2


class Fault(Exception):
    """What the protocol must not let happen."""


@dataclass(frozen=True)
class Rules:
    """The parts of the protocol that a test leaves out, to see that they are needed."""

    asks_for_the_phase: bool = True
    awaits_an_end: bool = True
    counts_parts_anew_before_the_end: bool = True
    looks_for_sleepers_after_the_end: bool = True


@dataclass(frozen=True)
class Thread:
    """Where it stands; numbers are of phases since the start."""

    at: str = "outside"
    phase: int = 0
    last: int = 0
    """Behind the last phase of the run that it is in."""
    takes_part: bool = False
    seen: tuple[int, int, int] = (0, 0, 0)
    """The meeting as it read it."""
    part: int = 0
    rings: int = 0
    is_asleep: bool = False


@dataclass(frozen=True)
class World:
    threads: tuple[Thread, ...]
    meeting: tuple[int, int, int] = (0, 1, 0)
    """Phase, who takes part, who has arrived."""
    claimed: int = 0
    sleeping: int = 0
    begun: frozenset[tuple[int, int]] = frozenset()
    """(phase, part) that somebody is at or has done."""
    done: frozenset[tuple[int, int]] = frozenset()
    run: int = -1
    """What helpers find."""


def explore(num_threads: int, rules: Rules) -> int:
    """The number of worlds that can be reached. Raises Fault."""
    first = World(tuple(Thread() for _ in range(num_threads)))
    reached, open_worlds = {first}, [first]
    while open_worlds:
        world = open_worlds.pop()
        following = [after for index in range(num_threads) for after in _steps(world, index, rules)]
        if not following:
            _check_rest(world)
        for after in following:
            if after not in reached:
                reached.add(after)
                open_worlds.append(after)
    return len(reached)


def _check_rest(world: World) -> None:
    if world.threads[0].at != "home" or any(thread.at != "outside" for thread in world.threads[1:]):
        raise Fault(f"nobody can go on: {world}")
    if len(world.done) != NUM_RUNS * NUM_PHASES * NUM_PARTS:
        raise Fault(f"not all parts are done: {world}")


def _steps(world: World, index: int, rules: Rules) -> list[World]:
    thread = world.threads[index]
    if thread.is_asleep:
        return []
    step = globals()[f"_{thread.at}"]
    found: list[World] = step(world, index, thread, rules)
    return found


def _put(world: World, index: int, thread: Thread, **changes: object) -> World:
    threads = (*world.threads[:index], thread, *world.threads[index + 1 :])
    return replace(world, threads=threads, **changes)  # type: ignore[arg-type]


def _outside(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    if index == 0:
        run = world.run + 1
        if run == NUM_RUNS:
            return [_put(world, 0, replace(thread, at="home"))]
        base = run * NUM_PHASES
        threads = tuple(replace(each, rings=each.rings + 1) for each in world.threads)
        begun = replace(thread, at="claim", phase=base, last=base + NUM_PHASES, takes_part=True)
        return [_put(replace(world, threads=threads, run=run, meeting=(world.meeting[0], 1, 0)), 0, begun)]
    return [_put(world, index, replace(thread, at="rung", rings=0))] if thread.rings else []


def _home(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    return []


def _rung(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    base = world.run * NUM_PHASES
    entered = replace(thread, at="claim", phase=base, last=base + NUM_PHASES, takes_part=False)
    return [_put(world, index, entered)]


def _claim(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    if not thread.takes_part:
        return [_put(world, index, replace(thread, at="look"))]
    part = world.claimed
    if part >= NUM_PARTS:
        return [_put(world, index, replace(thread, at="arrive"), claimed=part + 1)]
    key = (thread.phase, part)
    if key in world.begun:
        raise Fault(f"a part is done twice: {key}")
    before = {(phase, each) for phase in range(thread.phase) for each in range(NUM_PARTS)}
    if not before <= world.done:
        raise Fault(f"a part is done too early: {key}")
    begun = world.begun | {key}
    return [_put(world, index, replace(thread, at="work", part=part), claimed=part + 1, begun=begun)]


def _work(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    return [_put(world, index, replace(thread, at="claim"), done=world.done | {(thread.phase, thread.part)})]


def _look(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    phase, num_members, num_arrived = world.meeting
    if phase != thread.phase and rules.asks_for_the_phase:
        return [_put(world, index, replace(thread, at="arrive"))]
    if num_members == num_arrived and rules.awaits_an_end:
        return []
    return [_put(world, index, replace(thread, at="swap", seen=world.meeting))]


def _swap(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    if world.meeting != thread.seen:
        return [_put(world, index, replace(thread, at="look", seen=(0, 0, 0)))]
    phase, num_members, num_arrived = thread.seen
    joined = replace(thread, at="claim", takes_part=True, seen=(0, 0, 0))
    return [_put(world, index, joined, meeting=(phase, num_members + 1, num_arrived))]


def _arrive(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    if not thread.takes_part:
        return [_put(world, index, _next(thread))]
    phase, num_members, num_arrived = world.meeting
    meeting = (phase, num_members, num_arrived + 1)
    if num_arrived + 1 == num_members:
        first = "reset" if rules.counts_parts_anew_before_the_end else "end"
        return [_put(world, index, replace(thread, at=first, seen=meeting), meeting=meeting)]
    return [_put(world, index, replace(thread, at="spin"), meeting=meeting)]


def _reset(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    after = "end" if rules.counts_parts_anew_before_the_end else "wake"
    return [_put(world, index, replace(thread, at=after), claimed=0)]


def _end(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    """The difference is added, as the word's other readers leave it alone now."""
    phase, num_members, num_arrived = (now - seen for now, seen in zip(world.meeting, thread.seen, strict=True))
    meeting = (thread.phase + 1 + phase, thread.seen[1] + num_members, num_arrived)
    after = "wake" if rules.counts_parts_anew_before_the_end else "reset"
    return [_put(world, index, replace(thread, at=after, seen=(0, 0, 0)), meeting=meeting)]


def _wake(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    after = _put(world, index, _next(thread))
    if world.sleeping and rules.looks_for_sleepers_after_the_end:
        return [replace(after, threads=tuple(replace(each, is_asleep=False) for each in after.threads))]
    return [after]


def _spin(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    """It sees the end, or loses patience."""
    if world.meeting[0] != thread.phase:
        return [_put(world, index, _next(thread))]
    return [_put(world, index, replace(thread, at="tired"), sleeping=world.sleeping + 1)]


def _tired(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    if world.meeting[0] != thread.phase:
        return [_put(world, index, _next(thread), sleeping=world.sleeping - 1)]
    return [_put(world, index, replace(thread, at="bed"))]


def _bed(world: World, index: int, thread: Thread, rules: Rules) -> list[World]:
    """The kernel compares and puts to sleep in one."""
    is_asleep = world.meeting[0] == thread.phase
    return [_put(world, index, replace(thread, at="tired", is_asleep=is_asleep))]


def _next(thread: Thread) -> Thread:
    phase = thread.phase + 1
    at = "outside" if phase == thread.last else "claim"
    return replace(thread, at=at, phase=0 if at == "outside" else phase, last=0 if at == "outside" else thread.last,
                   takes_part=thread.takes_part and at == "claim", part=0)  # fmt: skip
