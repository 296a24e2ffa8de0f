"""All that can be known of a topology without starting it, problem by problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ..actors.launch import Launch, check_draft, check_load, find_draft, find_model, plan_launch
from ..checkpoints import Progress
from ..errors import StartFailed
from ..text.chat_template import ChatTemplate
from ..topology import Problem, Reading, Topology, check_machine, check_topology, is_independent


def examine(reading: Reading, folder: str, progress: Progress | None = None) -> tuple[Launch | None, list[Problem]]:
    """What would be started, and what is wrong; `folder` is the topology file's.

    A model that lies here is looked at whatever else is wrong; one that has to be fetched only when nothing is.
    """
    topology, faults = reading.topology, reading.problems
    beside = [*faults, *_independent([*check_machine(topology, folder), *_template_problems(topology)], faults)]
    problems = [*beside, *_independent(check_topology(topology), faults)]
    source = topology.model.source
    if not source or (_has_errors(problems) and not Path(source).expanduser().exists()):
        return None, problems
    try:
        checkpoint, shape, topology = find_model(topology, progress)
    except StartFailed as error:
        return None, [*problems, Problem(("model", "source"), error.cause, "", error.advice)]
    try:
        draft = find_draft(topology, checkpoint, shape, progress)
    except StartFailed as error:
        return None, [*problems, Problem(("speculative", "model"), error.cause, "", error.advice)]
    rules = [*check_load(topology, checkpoint), *check_topology(topology, shape), *check_draft(topology, shape, draft)]
    problems = [*beside, *_independent(rules, faults)]
    if _has_errors(problems):
        return None, problems
    try:
        return plan_launch(topology, checkpoint, shape, draft), problems
    except StartFailed as error:
        return None, [*problems, Problem(("kv_cache",), error.cause, "", error.advice)]


def _independent(problems: Iterable[Problem], faults: Sequence[Problem]) -> list[Problem]:
    return [problem for problem in problems if is_independent(problem, faults)]


def _has_errors(problems: Sequence[Problem]) -> bool:
    return any(not problem.is_warning for problem in problems)


def _template_problems(topology: Topology) -> Iterator[Problem]:
    """Of the syntax of a chat template; whether the file can be read was looked at before."""
    name = topology.model.chat_template
    if not name:
        return
    try:
        source = Path(name).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    try:
        ChatTemplate(source, {}, where=f"chat_template = {name!r}")
    except StartFailed as error:
        yield Problem(("model", "chat_template"), error.cause, "", error.advice)
