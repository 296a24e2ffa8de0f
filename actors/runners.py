"""What runs a worker's plans, chosen by its device. Torch is loaded only where a model is computed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from ..mailbox.messages.control import Start
from ..shm_queue import ProgressLine
from ..topology.schema import NULL_DEVICE, ProcessSection
from .loading import LoadingStatistics

if TYPE_CHECKING:
    from ..execution.null_runner import NullRunner
    from ..execution.runner import ModelRunner


def make_runner(start: Start, section: ProcessSection, progress: ProgressLine) -> ModelRunner | NullRunner:
    """The runner of one rank; a model is loaded, and the bytes loaded are shown on the progress line."""
    if section.device == NULL_DEVICE:
        return _null_runner(start)
    return _model_runner(start, section, progress)


def _null_runner(start: Start) -> NullRunner:
    from ..execution.null_runner import NullRunner
    from ..text import load_tokenizer

    tokenizer = load_tokenizer(start.checkpoint, has_chat_template=False)
    shape = start.shape
    ids = range(min(shape.vocab_size, tokenizer.vocab_size))
    visible_ids = [i for i in ids if not tokenizer.is_special(i) and tokenizer.token_bytes(i)]
    return NullRunner(
        visible_ids=np.array(visible_ids, np.int32),
        eos_token_id=min(shape.eos_token_ids, default=None),
        num_blocks=start.num_blocks,
        block_size=start.topology.kv_cache.block_size,
        max_num_seqs=start.topology.scheduler.max_num_seqs,
        max_model_len=start.max_model_len,
    )


def _model_runner(start: Start, section: ProcessSection, progress: ProgressLine) -> ModelRunner:
    import torch

    from ..execution.runner import ModelRunner
    from ..execution.threads import configure_threads
    from ..models import load_model

    topology = start.topology
    configure_threads(section.threads or len(os.sched_getaffinity(0)))
    dtype = getattr(torch, topology.model.dtype)
    kv_dtype = dtype if topology.model.kv_dtype == "auto" else getattr(torch, topology.model.kv_dtype)
    model = load_model(
        start.checkpoint,
        start.shape,
        dtype,
        torch.device(section.device),
        start.max_model_len,
        lambda done, total: progress.set_statistics(LoadingStatistics(done, total)),
    )
    return ModelRunner(
        model,
        num_blocks=start.num_blocks,
        block_size=topology.kv_cache.block_size,
        kv_dtype=kv_dtype,
        max_num_seqs=topology.scheduler.max_num_seqs,
        max_model_len=start.max_model_len,
    )
