"""All that can be known of a topology without starting it, problem by problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..actors.launch import Launch, find_model, plan_launch
from ..checkpoints import Progress
from ..errors import StartFailed
from ..text.chat_template import ChatTemplate
from ..topology import Problem, Reading, Topology, check_machine, check_topology, is_independent


def examine(reading: Reading, folder: str, progress: Progress | None = None) -> tuple[Launch | None, list[Problem]]:
    """What would be started, and what is wrong; `folder` is the topology file's.

    A model that lies here is looked at whatever else is wrong; one that has to be fetched only when nothing is.
    """
    topology, faults = reading.topology, reading.problems
    problems = [*check_topology(topology), *check_machine(topology, folder)]
    problems += _template_problems(topology)
    problems = [*faults, *(problem for problem in problems if is_independent(problem, faults))]
    has_errors = any(not problem.is_warning for problem in problems)
    if not topology.model.source or (has_errors and not Path(topology.model.source).expanduser().exists()):
        return None, problems
    try:
        checkpoint, shape, topology = find_model(topology, progress)
    except StartFailed as error:
        return None, [*problems, Problem(("model", "source"), error.cause, "", error.advice)]
    known = {problem.path for problem in problems}
    of_model = [problem for problem in check_topology(topology, shape) if is_independent(problem, faults)]
    # A rule that the model makes sharper says more than the one without it.
    of_model_paths = {problem.path for problem in of_model}
    problems = [p for p in problems if p.path not in of_model_paths or p in faults or p.is_warning]
    problems += [p for p in of_model if not p.is_warning or p.path not in known]
    if any(not problem.is_warning for problem in problems):
        return None, problems
    try:
        return plan_launch(topology, checkpoint, shape), problems
    except StartFailed as error:
        return None, [*problems, Problem(("kv_cache",), error.cause, "", error.advice)]


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
