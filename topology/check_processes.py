"""The rules about processes and the actors in them."""

from __future__ import annotations

import re

from .decode import show_value
from .describe import nearest
from .problem import NOT_YET, Problem
from .schema import ACTOR_KINDS, NULL_DEVICE, ProcessSection, Topology

KINDS_NOT_YET = ("grammar", "proposer")
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
"""Names of processes stand in socket paths, which are short, and in logs."""
DEVICE = re.compile(r"cpu|null|cuda(:\d+)?")
MAX_ACTORS_OF_A_KIND = 64
MAX_MAILBOX_PAIRS = 64
"""Frontends times tokenizers: each pair may be two sockets, and a child gets all of its own in one control message."""


def check_processes(topology: Topology, problems: list[Problem]) -> None:
    """Append what is wrong with `[[process]]`."""
    names: set[str] = set()
    totals = dict.fromkeys(ACTOR_KINDS, 0)
    has_bad_actors = False
    for process in topology.process:
        place = f"[[process]] {show_value(process.name)}"
        _check_name(process.name, place, names, problems)
        kinds: list[str] = []
        for actor in process.actors:
            parsed = _check_actor(actor, place, problems)
            if parsed is None:
                has_bad_actors = True
                continue
            kind, count = parsed
            kinds.append(kind)
            totals[kind] += count
        if not process.actors:
            problems.append(Problem(place, "actors = []", "at least one actor", "name its actors or drop the process"))
        _check_placement(process, kinds, place, problems)
    if not has_bad_actors:
        _check_totals(totals, problems)


def _check_name(name: str, place: str, names: set[str], problems: list[Problem]) -> None:
    if name in names:
        problems.append(Problem(place, f"a second process of the name {show_value(name)}", "unique names", "rename it"))
    names.add(name)
    if not NAME.fullmatch(name) or name == "supervisor":
        problems.append(
            Problem(
                place,
                f"name = {show_value(name)}",
                'a letter, then at most 31 letters, digits, "_" or "-"; not "supervisor"',
                "rename it",
            )
        )


def _check_actor(actor: str, place: str, problems: list[Problem]) -> tuple[str, int] | None:
    """(kind, count) of an entry of `actors`, or None and a problem."""
    kind, star, count = (part.strip() for part in actor.partition("*"))
    got = f"actor {show_value(actor)}"
    if kind not in ACTOR_KINDS:
        problems.append(Problem(place, got, "one of " + ", ".join(ACTOR_KINDS), nearest(kind, ACTOR_KINDS)))
        return None
    if star and not (count.isascii() and count.isdigit() and 1 <= int(count) <= MAX_ACTORS_OF_A_KIND):
        allowed = f"a count from 1 to {MAX_ACTORS_OF_A_KIND}, as in {kind}*2"
        problems.append(Problem(place, got, allowed, "drop the actor or give a count"))
        return None
    if kind in KINDS_NOT_YET:
        problems.append(
            Problem(place, got, f"frontend, tokenizer, scheduler, worker; {kind} is {NOT_YET}", "leave it out")
        )
    return kind, int(count) if star else 1


def _check_placement(process: ProcessSection, kinds: list[str], place: str, problems: list[Problem]) -> None:
    """The fields that are about a worker, and whether they can be honoured."""
    has_worker = "worker" in kinds
    if not DEVICE.fullmatch(process.device):
        got = f"device = {show_value(process.device)}"
        problems.append(Problem(place, got, '"cpu", "null", "cuda" or "cuda:N"', '"cpu" is the default'))
    elif process.device not in ("cpu", NULL_DEVICE):
        got = f"device = {show_value(process.device)}"
        problems.append(Problem(place, got, f'only "cpu" and "null", others are {NOT_YET}', "leave it out"))
    for name in ("tensor_parallel", "pipeline_parallel"):
        if getattr(process, name) > 1:
            got = f"{name} = {getattr(process, name)}"
            problems.append(Problem(place, got, f"only 1, more is {NOT_YET}", "leave it out"))
    if process.threads is not None and not has_worker:
        got = f"threads = {process.threads}"
        problems.append(Problem(place, got, "only in the worker's process", "move it there or leave it out"))


def _check_totals(totals: dict[str, int], problems: list[Problem]) -> None:
    place = "[[process]]"
    for kind in ("frontend", "tokenizer", "scheduler", "worker"):
        if totals[kind] == 0:
            allowed = f"{'exactly' if kind == 'scheduler' else 'at least'} one {kind}"
            problems.append(Problem(place, f"no {kind}", allowed, f'add "{kind}" to the actors of a process'))
    if totals["scheduler"] > 1:
        problems.append(Problem(place, f"{totals['scheduler']} schedulers", "exactly one scheduler", "keep one"))
    if totals["worker"] > 1:
        got = f"{totals['worker']} workers"
        problems.append(Problem(place, got, f"one worker, more are {NOT_YET}", "keep one"))
    if totals["frontend"] * totals["tokenizer"] > MAX_MAILBOX_PAIRS:
        got = f"{totals['frontend']} frontends and {totals['tokenizer']} tokenizers"
        allowed = f"at most {MAX_MAILBOX_PAIRS} pairs of them: each has mailboxes of its own"
        problems.append(Problem(place, got, allowed, "lower one of the counts"))
