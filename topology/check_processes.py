"""The rules about processes and the actors in them."""

from __future__ import annotations

import re

from ..checkpoints.shape import ModelShape
from .check_ranks import check_ranks
from .decode import show_value
from .describe import nearest
from .problem import NOT_YET, Problem, process_label
from .schema import ACTOR_KINDS, NULL_DEVICE, ProcessSection, Topology

KINDS_NOT_YET = ("proposer",)
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
"""Names of processes stand in socket paths, which are short, and in logs."""
DEVICE = re.compile(r"cpu|null|cuda(:\d+)?")
MAX_ACTORS_OF_A_KIND = 64
MAX_MAILBOX_PAIRS = 64
"""Frontends times tokenizers: each pair may be two sockets, and a child gets all of its own in one control message."""


def check_processes(topology: Topology, shape: ModelShape | None, problems: list[Problem]) -> None:
    """Append what is wrong with `[[process]]`."""
    names: set[str] = set()
    totals = dict.fromkeys(ACTOR_KINDS, 0)
    has_bad_actors = False
    for index, process in enumerate(topology.process):
        path = ("process", process_label({"name": process.name}, index))
        _check_name(process.name, path, names, problems)
        kinds: list[str] = []
        for actor in process.actors:
            parsed = _check_actor(actor, path, problems)
            if parsed is None:
                has_bad_actors = True
                continue
            kind, count = parsed
            kinds.append(kind)
            totals[kind] += count
        if not process.actors:
            advice = "name its actors or drop the process"
            problems.append(Problem((*path, "actors"), "actors = []", "at least one actor", advice))
            has_bad_actors = True
        _check_worker_fields(process, kinds, path, problems)
        check_ranks(topology, process, kinds, path, shape, problems)
        _check_restart(process, path, problems)
    if not has_bad_actors:
        _check_totals(totals, problems)


def _check_name(name: str, path: tuple[str, str], names: set[str], problems: list[Problem]) -> None:
    got = f"name = {show_value(name)}"
    if name in names:
        problems.append(Problem((*path, "name"), got, "unique names, it is a second of this name", "rename it"))
    names.add(name)
    if not NAME.fullmatch(name) or name == "supervisor":
        allowed = 'a letter, then at most 31 letters, digits, "_" or "-"; not "supervisor"'
        problems.append(Problem((*path, "name"), got, allowed, "rename it"))


def _check_actor(actor: str, path: tuple[str, str], problems: list[Problem]) -> tuple[str, int] | None:
    """(kind, count) of an entry of `actors`, or None and a problem."""
    kind, star, count = (part.strip() for part in actor.partition("*"))
    field = (*path, "actors")
    got = f"actor {show_value(actor)}"
    if kind not in ACTOR_KINDS:
        advice = nearest(kind, ACTOR_KINDS) or "remove it"
        problems.append(Problem(field, got, "one of " + ", ".join(ACTOR_KINDS), advice))
        return None
    if star and not (count.isascii() and count.isdigit() and 1 <= int(count) <= MAX_ACTORS_OF_A_KIND):
        allowed = f"a count from 1 to {MAX_ACTORS_OF_A_KIND}, as in {kind}*2"
        problems.append(Problem(field, got, allowed, "drop the actor or give a count"))
        return None
    if kind in KINDS_NOT_YET:
        allowed = f"frontend, tokenizer, scheduler, grammar, worker; {kind} is {NOT_YET}"
        problems.append(Problem(field, got, allowed, "leave it out"))
    return kind, int(count) if star else 1


def _check_worker_fields(
    process: ProcessSection,
    kinds: list[str],
    path: tuple[str, str],
    problems: list[Problem],
) -> None:
    """The fields that are about a worker, and whether they can be honoured."""
    device = f"device = {show_value(process.device)}"
    if not DEVICE.fullmatch(process.device):
        allowed = '"cpu", "null", "cuda" or "cuda:N"'
        problems.append(Problem((*path, "device"), device, allowed, '"cpu" is the default'))
    elif process.device not in ("cpu", NULL_DEVICE) and set(kinds) > {"worker"}:
        allowed = "a process of its own for the worker of a GPU: it is started first, to measure its memory"
        problems.append(Problem((*path, "device"), device, allowed, "move the other actors", ((*path, "actors"),)))
    if "worker" in kinds:
        return
    for name, value in (("threads", process.threads), ("device", process.device)):
        if value not in (None, "cpu"):
            got = f"{name} = {show_value(value)}"
            advice = "move it there or leave it out"
            problems.append(Problem((*path, name), got, "only in the worker's process", advice, ((*path, "actors"),)))


def _check_restart(process: ProcessSection, path: tuple[str, str], problems: list[Problem]) -> None:
    restart = process.restart
    if restart.max > 1 and restart.backoff_s >= restart.within_s:
        got = f"restart = {{ within_s = {restart.within_s:g}, backoff_s = {restart.backoff_s:g} }}"
        allowed = "backoff_s below within_s: or a death has left the window before the next one, and max ends nothing"
        advice = "lower backoff_s or raise within_s"
        depends_on = ((*path, "restart", "within_s"),)
        problems.append(Problem((*path, "restart", "backoff_s"), got, allowed, advice, depends_on, is_warning=True))


def _check_totals(totals: dict[str, int], problems: list[Problem]) -> None:
    path = ("process",)
    for kind in ("frontend", "tokenizer", "scheduler", "worker"):
        if totals[kind] == 0:
            allowed = f"{'exactly' if kind == 'scheduler' else 'at least'} one {kind}"
            problems.append(Problem(path, f"no {kind}", allowed, f'add "{kind}" to the actors of a process'))
    if totals["scheduler"] > 1:
        problems.append(Problem(path, f"{totals['scheduler']} schedulers", "exactly one scheduler", "keep one"))
    if totals["grammar"] > 1:
        got = f"{totals['grammar']} grammar actors"
        problems.append(Problem(path, got, "at most one, which compiles in processes of its own", "keep one"))
    if totals["worker"] > 1:
        got = f"{totals['worker']} workers"
        problems.append(Problem(path, got, f"one worker, more are {NOT_YET}", "keep one"))
    if totals["frontend"] * totals["tokenizer"] > MAX_MAILBOX_PAIRS:
        got = f"{totals['frontend']} frontends and {totals['tokenizer']} tokenizers"
        allowed = f"at most {MAX_MAILBOX_PAIRS} pairs of them: each has mailboxes of its own"
        problems.append(Problem(path, got, allowed, "lower one of the counts"))
