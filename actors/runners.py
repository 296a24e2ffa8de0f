"""What runs a worker's plans, chosen by its device. Torch is loaded only where a model is computed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from msgspec import structs

from ..checkpoints.shape import DraftCheckpoint
from ..errors import StartFailed
from ..mailbox.messages.control import Start
from ..shm_queue import BoardReader, BoardWriter, ProgressLine
from ..shm_queue.rank_region import RankRegionLayout
from ..topology.device import device_of_rank
from ..topology.plan import has_constrained_drafts, num_threads_of
from ..topology.schema import NULL_DEVICE, ProcessSection, SpeculativeSection
from .dtypes import compiled_obstacle
from .loading import LoadingStatistics
from .log import log_event

if TYPE_CHECKING:
    import torch

    from ..checkpoints.stages import Stage
    from ..execution.device.runner import DeviceRunner
    from ..execution.forward import Forward
    from ..execution.input_batch import InputBatch
    from ..execution.null_runner import NullRunner
    from ..execution.runner import ModelRunner
    from ..execution.stage_links import HiddenSender, StageLinks, TokenSender
    from ..execution.stage_runner import StageRunner
    from ..execution.token_masks import MaskSource
    from ..models.collective import Collective
    from ..speculative.proposer import Proposer


class RankPlace(NamedTuple):
    """This process among the ranks of a worker that has several."""

    rank: int
    layout: RankRegionLayout
    fd: int
    """Of the region; the runner's."""


class StageEnds(NamedTuple):
    """This process's ends of the boards between the stages of a worker that has several."""

    stage: int
    num_stages: int
    hidden_in: BoardReader | None
    hidden_out: BoardWriter | None
    tokens_in: BoardReader | None
    tokens_out: BoardWriter | None


def make_runner(
    start: Start,
    section: ProcessSection,
    progress: ProgressLine,
    on_measured: Callable[[int], None] = lambda num_blocks: None,
    masks: MaskSource | None = None,
    place: RankPlace | None = None,
    stage: StageEnds | None = None,
) -> ModelRunner | StageRunner | DeviceRunner | NullRunner:
    """The runner of one rank; a model is loaded, and the bytes loaded are shown on the progress line.

    `on_measured` is told the blocks of a pool that the device's memory was measured for; `masks`: of constrained rows,
    if there may be any; `place`: where others share its layers; `stage`: where others have other layers.
    """
    if section.device == NULL_DEVICE:
        return _null_runner(start, masks)
    if section.device != "cpu":
        runner = _device_runner(start, section, progress, masks, place)
        on_measured(runner.pool.num_blocks)
        return runner
    return _model_runner(start, section, progress, masks, place, stage)


def _null_runner(start: Start, masks: MaskSource | None) -> NullRunner:
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
        masks=masks,
        vocab_size=shape.vocab_size,
        proposer=_proposer(start),
    )


def _device_runner(
    start: Start, section: ProcessSection, progress: ProgressLine, masks: MaskSource | None, place: RankPlace | None
) -> DeviceRunner:
    import torch

    from ..checkpoints.sharding import Sharding
    from ..execution.device.cuda import CudaDevice
    from ..execution.device.limits import RunnerLimits
    from ..execution.device.start import make_operations, start_runner
    from ..models.device_decoder import DeviceDecoder
    from ..models.device_form import load_device_decoder

    device = CudaDevice(_torch_device(section.device, 0 if place is None else place.rank))
    group = None if place is None else _RankGroup(place, device.torch_device)
    settings, scheduler = start.topology.model, start.topology.scheduler
    dtype: torch.dtype = getattr(torch, settings.dtype)
    limits = RunnerLimits(
        scheduler.max_num_seqs,
        scheduler.max_num_batched_tokens,
        start.max_model_len,
        scheduler.pipeline_depth,
        0 if start.topology.speculative is None else start.topology.speculative.max_tokens,
    )

    def report(done: int, total: int) -> None:
        progress.set_statistics(LoadingStatistics(done, total))

    def load() -> DeviceDecoder:
        there = device.torch_device
        shape = start.shape if group is None else Sharding(start.shape, group.on_devices.size).local_shape
        operations = make_operations(shape, limits.max_step_tokens, dtype, there, section.attention)
        return load_device_decoder(
            start.checkpoint,
            start.shape,
            dtype,
            there,
            operations,
            start.max_model_len,
            report,
            None if group is None else group.on_devices,
        )

    runner, plan = start_runner(
        load,
        device,
        limits,
        start.topology.kv_cache,
        getattr(torch, settings.kv_dtype),
        section.graphs,
        start.num_blocks,
        masks,
        _proposer(start),
        (lambda num_blocks: num_blocks) if group is None else group.least,
    )
    log_event("worker.memory", **{name: getattr(plan, name) for name in plan.__struct_fields__})
    return runner


def _torch_device(name: str, rank: int) -> torch.device:
    """Raises StartFailed if there is none."""
    import torch

    device = torch.device(device_of_rank(name, rank))
    there = torch.cuda.device_count()
    if (device.index or 0) >= there:
        raise StartFailed(
            f"there is no device {device} for rank {rank} of the worker, this machine has {there} GPUs",
            advice="lower tensor_parallel, or name the first of enough devices",
            phase="device",
        )
    return device


class _RankGroup:
    """This rank and the others, each on a GPU of its own."""

    def __init__(self, place: RankPlace, device: torch.device) -> None:
        from ..execution.collectives.counted import CountedCollective
        from ..execution.collectives.gpus import gpu_collective
        from ..execution.collectives.polled import PolledCollective

        try:
            self._on_host = PolledCollective(place.layout, place.fd, place.rank)
        finally:
            os.close(place.fd)
        self.on_devices = CountedCollective(gpu_collective(self._on_host, device))

    def least(self, number: int) -> int:
        """Of what the ranks say."""
        import torch

        return int(self._on_host.all_gather(torch.tensor([number])).min())


def _model_runner(
    start: Start,
    section: ProcessSection,
    progress: ProgressLine,
    masks: MaskSource | None,
    place: RankPlace | None,
    stage: StageEnds | None,
) -> ModelRunner | StageRunner:
    from ..execution.runner import ModelRunner

    def report(done: int, total: int) -> None:
        progress.set_statistics(LoadingStatistics(done, total))

    obstacle = compiled_obstacle(start.topology, start.shape)
    if obstacle is not None:
        log_event("worker.computes_with_torch", dtype=start.topology.model.dtype, reason=obstacle)
    max_num_seqs = start.topology.scheduler.max_num_seqs
    if obstacle is None:
        forward = _compiled_forward(start, section, report)
    elif stage is None:
        forward = _torch_forward(start, section, report, place)
    else:
        forward, links = _stage_forward(start, section, report, place, stage)
        if links.sender is not None:
            return _stage_runner(forward, links.sender, stage, max_num_seqs, start.max_model_len)
    return ModelRunner(
        forward,
        max_num_seqs=max_num_seqs,
        max_model_len=start.max_model_len,
        masks=masks,
        proposer=_proposer(start) if start.draft is None else _drafting(start, start.draft, forward, section, report),
        acceptance="coupled" if start.topology.speculative is None else start.topology.speculative.acceptance,
        tells_drafts=has_constrained_drafts(start.topology),
    )


def _drafting(
    start: Start, draft: DraftCheckpoint, target: Forward, section: ProcessSection, report: Callable[[int, int], None]
) -> Callable[[InputBatch], Proposer]:
    """A model, or a head of the target."""
    speculative = start.topology.speculative
    assert speculative is not None
    if speculative.method == "draft_model":
        return _draft_model(start, draft, section, report)
    return _draft_head(start, draft, target, speculative)


def _draft_head(
    start: Start, draft: DraftCheckpoint, target: Forward, speculative: SpeculativeSection
) -> Callable[[InputBatch], Proposer]:
    """The head is loaded now."""
    import torch

    from ..execution.draft_heads import LayerHeadProposer, MedusaProposer
    from ..execution.kv_tensors import KVTensors
    from ..execution.torch_forward import TorchForward
    from ..models.decoder import Decoder
    from ..models.draft_head_loader import load_layer_head, load_medusa

    assert isinstance(target, TorchForward), "hidden states are torch's"
    model, draws = target.model, speculative.acceptance == "rejection"
    assert isinstance(model, Decoder), "every family's is"
    if speculative.method == "medusa":
        heads = load_medusa(draft, model)
        return lambda batch: MedusaProposer(heads, model, batch, draws=draws)
    head = load_layer_head(speculative.method, draft, model, start.max_model_len)
    kv_dtype: torch.dtype = getattr(torch, start.topology.model.kv_dtype)
    block_size = start.topology.kv_cache.block_size
    kv = KVTensors(draft.shape, start.num_blocks, block_size, kv_dtype, target.device)
    return lambda batch: LayerHeadProposer(head, model, batch, kv, draws=draws)


def _draft_model(
    start: Start, draft: DraftCheckpoint, section: ProcessSection, report: Callable[[int, int], None]
) -> Callable[[InputBatch], Proposer]:
    """The model is loaded now."""
    from ..execution.draft_model import DraftModelProposer

    speculative = start.topology.speculative
    assert speculative is not None
    of_draft = structs.replace(start, checkpoint=draft.checkpoint, shape=draft.shape)
    obstacle = compiled_obstacle(start.topology, draft.shape)
    if obstacle is not None:
        log_event("worker.drafts_with_torch", dtype=start.topology.model.dtype, reason=obstacle)
        forward = _torch_forward(of_draft, section, report, None)
    else:
        forward = _compiled_forward(of_draft, section, report)
    max_chunk, draws = start.topology.scheduler.max_num_batched_tokens, speculative.acceptance == "rejection"

    def make(batch: InputBatch) -> Proposer:
        return DraftModelProposer(forward, batch, num_blocks=start.num_blocks, max_chunk=max_chunk, draws=draws)

    return make


def _proposer(start: Start) -> Proposer | None:
    section = start.topology.speculative
    if section is None:
        return None
    from ..speculative.make_proposer import METHODS, make_proposer

    names = METHODS[section.method].__struct_fields__
    options = {name: getattr(section, name) for name in names if hasattr(section, name)}
    return make_proposer(section.method, options, start.topology.scheduler.max_num_seqs, start.max_model_len)


def _stage_forward(
    start: Start,
    section: ProcessSection,
    report: Callable[[int, int], None],
    place: RankPlace | None,
    ends: StageEnds,
) -> tuple[Forward, StageLinks]:
    import torch

    from ..checkpoints.stages import stage_of
    from ..execution.stage_links import HiddenReceiver, HiddenSender, StageLinks, TokenSender
    from ..models.linear import compute_dtype

    width = compute_dtype(getattr(torch, start.topology.model.dtype), torch.device("cpu"))
    links = StageLinks(
        None if ends.hidden_in is None else HiddenReceiver(ends.hidden_in, start.shape.hidden_size, width),
        None if ends.hidden_out is None else HiddenSender(ends.hidden_out),
    )
    tokens = None if ends.tokens_out is None else TokenSender(ends.tokens_out)
    stage = stage_of(start.shape.num_layers, ends.stage, ends.num_stages)
    return _torch_forward(start, section, report, place, stage, links, tokens), links


def _stage_runner(
    forward: Forward, sender: HiddenSender, ends: StageEnds, max_num_seqs: int, max_model_len: int
) -> StageRunner:
    from ..execution.stage_links import TokenReceiver
    from ..execution.stage_runner import StageRunner

    tokens = None if ends.tokens_in is None else TokenReceiver(ends.tokens_in)
    return StageRunner(forward, sender, tokens, max_num_seqs=max_num_seqs, max_model_len=max_model_len)


def _torch_forward(
    start: Start,
    section: ProcessSection,
    report: Callable[[int, int], None],
    place: RankPlace | None,
    stage: Stage | None = None,
    links: StageLinks | None = None,
    tokens: TokenSender | None = None,
) -> Forward:
    import torch

    from ..execution.threads import configure_threads
    from ..execution.torch_forward import TorchForward
    from ..models.load import load_model

    configure_threads(_num_threads(section))
    collective = None if place is None else _shared_memory_collective(place)
    dtype, device = getattr(torch, start.topology.model.dtype), torch.device("cpu")
    model = load_model(start.checkpoint, start.shape, dtype, device, start.max_model_len, report, collective, stage)
    block_size = start.topology.kv_cache.block_size
    kv_dtype: torch.dtype = getattr(torch, start.topology.model.kv_dtype)
    return TorchForward(
        model,
        num_blocks=start.num_blocks,
        block_size=block_size,
        kv_dtype=kv_dtype,
        collective=collective,
        links=links,
        tokens=tokens,
    )


def _shared_memory_collective(place: RankPlace) -> Collective:
    from ..execution.collectives.shared_memory import SharedMemoryCollective

    try:
        return SharedMemoryCollective(place.layout, place.fd, place.rank)
    finally:
        os.close(place.fd)


def _compiled_forward(start: Start, section: ProcessSection, report: Callable[[int, int], None]) -> Forward:
    from ..execution.compiled_forward import CompiledForward
    from ..kernels.cpu.code_cache import has_compiled_code
    from ..models.compiled_decoder import load_compiled_model

    if not has_compiled_code():
        log_event("worker.compiling", what="kernels for this CPU, once for this version: some 30 s")
    settings = start.topology.model
    model = load_compiled_model(
        start.checkpoint,
        start.shape,
        settings.dtype,
        start.max_model_len,
        _num_threads(section),
        settings.activation_bits,
        report,
    )
    block_size = start.topology.kv_cache.block_size
    kv_dtype = start.topology.model.kv_dtype
    return CompiledForward(model, num_blocks=start.num_blocks, block_size=block_size, kv_dtype=kv_dtype)


def _num_threads(section: ProcessSection) -> int:
    return num_threads_of(section, len(os.sched_getaffinity(0)))
