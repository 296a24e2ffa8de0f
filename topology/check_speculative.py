"""The rules about [speculative]."""

from __future__ import annotations

from ..checkpoints.shape import ModelShape
from .decode import show_value
from .device import has_gpu
from .plan import has_null_device, max_model_len_of, num_ranks_of, worker_process
from .problem import NOT_YET, Problem
from .schema import NULL_DEVICE, Topology

HEAD_METHODS = frozenset({"eagle", "eagle3", "medusa", "mtp"})
"""Heads of the model that is served."""
MODEL_METHODS = frozenset({"draft_model", *HEAD_METHODS})
"""That have a checkpoint of their own, or layers in that of the model."""


def check_draft_model(topology: Topology, shape: ModelShape, draft: ModelShape) -> list[Problem]:
    """What keeps a model, or a head, of the shape `draft` from drafting for one of `shape`."""
    assert topology.speculative is not None
    problems: list[Problem] = []
    path, got = ("speculative", "model"), f"model = {show_value(topology.speculative.model)}"
    if topology.speculative.method in HEAD_METHODS and draft.hidden_size != shape.hidden_size:
        problems.append(
            Problem(
                path,
                f"{got}, a head of hidden_size {draft.hidden_size:,}",
                f"one of {shape.hidden_size:,}, that of [model] source: it reads its hidden states",
                "name the head that was trained for this model",
            )
        )
    if draft.vocab_size != shape.vocab_size:
        problems.append(
            Problem(
                path,
                f"{got}, which has a vocabulary of {draft.vocab_size:,} tokens",
                f"one of {shape.vocab_size:,}, that of [model] source: its drafts are token ids of that",
                "name a smaller model of the same family",
            )
        )
    max_model_len = max_model_len_of(topology, shape)
    if topology.speculative.method == "draft_model" and draft.max_position < max_model_len:
        problems.append(
            Problem(
                path,
                f"{got}, which takes {draft.max_position:,} tokens",
                f"at least max_model_len = {max_model_len:,}: it computes the whole request",
                f"lower [model] max_model_len to {draft.max_position:,}, or name another",
            )
        )
    return problems


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
    _check_model(topology, problems)
    for process in topology.process:
        is_device = "worker" in process.actors and process.device not in ("cpu", NULL_DEVICE)
        if is_device and section.acceptance != "coupled":
            got = f"acceptance = {show_value(section.acceptance)} beside device = {show_value(process.device)}"
            allowed = f'"coupled"; on devices others are {NOT_YET}'
            problems.append(Problem(("speculative", "acceptance"), got, allowed, "leave it out"))


def _check_model(topology: Topology, problems: list[Problem]) -> None:
    section = topology.speculative
    assert section is not None
    path, method = ("speculative", "model"), f'method = "{section.method}"'
    if section.method in MODEL_METHODS and not section.model and (section.method, section.model) != ("mtp", None):
        if section.model is None:
            path, got = ("speculative", "method"), f"{method} without model"
        else:
            got = 'model = ""'
        problems.append(Problem(path, got, "a checkpoint, named as in [model] source", "name one"))
    elif section.method in MODEL_METHODS and has_null_device(topology):
        got = f'{method} beside device = "{NULL_DEVICE}", which computes no model'
        problems.append(Problem(("speculative", "method"), got, '"ngram" or "suffix" there', "choose one of these"))
    elif section.method in MODEL_METHODS and (has_gpu(topology) or num_ranks_of(worker_process(topology)) > 1):
        got = f"{method} beside a worker on a GPU, or of several ranks"
        allowed = f'"ngram" or "suffix" there; others are {NOT_YET}'
        problems.append(Problem(("speculative", "method"), got, allowed, "choose one of these"))
    elif section.model is not None and section.method not in MODEL_METHODS:
        got = f"model = {show_value(section.model)} beside {method}"
        problems.append(Problem(path, got, "nothing: this method has no model", "leave it out"))
