"""The rules about [speculative]."""

from __future__ import annotations

from .decode import show_value
from .problem import NOT_YET, Problem
from .schema import NULL_DEVICE, Topology


def check_speculative(topology: Topology, problems: list[Problem]) -> None:
    """Append what is wrong with it."""
    section = topology.speculative
    if section is None:
        return
    budget = topology.scheduler.max_num_batched_tokens
    if section.max_tokens >= budget:
        got = f"max_tokens = {section.max_tokens}"
        allowed = f"less than max_num_batched_tokens = {budget}: drafts and the token before them go into one step"
        problems.append(Problem(("speculative", "max_tokens"), got, allowed, f"set it to {max(1, budget // 2)}"))
    if section.min_ngram > section.max_ngram:
        got = f"min_ngram = {section.min_ngram}"
        problems.append(
            Problem(("speculative", "min_ngram"), got, f"at most max_ngram = {section.max_ngram}", "lower it")
        )
    for process in topology.process:
        is_device = "worker" in process.actors and process.device not in ("cpu", NULL_DEVICE)
        if is_device and section.acceptance != "coupled":
            got = f"acceptance = {show_value(section.acceptance)} beside device = {show_value(process.device)}"
            allowed = f'"coupled"; on devices others are {NOT_YET}'
            problems.append(Problem(("speculative", "acceptance"), got, allowed, "leave it out"))
