"""The memory ledger: what a topology will hold, and how many KV blocks it gets. Sizes in bytes, lengths in tokens."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ..checkpoints.shape import ModelShape
from ..checkpoints.sharding import Sharding
from ..errors import NotEnoughMemory
from .activations import StepLimits, activation_bytes_of, batch_and_sampling_bytes_of
from .arithmetic import Arithmetic
from .boards import plan_boards, rank_region_layout, stage_boards
from .compiled import compiled_buffer_bytes, packed_weight_bytes
from .device import DEVICE_POOL_SHARE, device_graph_bytes, device_step_bytes, has_gpu
from .plan import (
    block_bytes_of,
    blocks_for,
    expand_actors,
    has_null_device,
    kind_of,
    max_model_len_of,
    num_ranks_of,
    num_threads_of,
    worker_process,
)
from .render import render_bytes
from .schema import Topology
from .weights import weight_bytes_of

DEFAULT_MEMORY_SHARE = 0.25
"""Of the memory that all else leaves free, for the KV pool on a CPU."""
_PROBABILITY_BYTES = 4
_NULL_TOKEN_BYTES = 8
"""What a null device holds of a token in its pool."""

MIB = 1 << 20
_PROCESS_BYTES = 22 * MIB
"""Python, uvloop, messages: a process with a scheduler and nothing else has 24 MiB."""
_SUPERVISOR_BYTES = 42 * MIB
"""With the command line and checkpoints read."""
_ACTOR_BYTES = {
    "frontend": 13 * MIB,
    "tokenizer": 21 * MIB,
    "scheduler": 2 * MIB,
    "grammar": 1 * MIB,
    "worker": 151 * MIB,
}
"""Beside its process, at rest. Of a tokenizer: with the process that renders chat templates. Of a worker: torch, and
what its libraries set up at the first steps. A grammar actor loads nothing before the first format."""
_COMPILER_BYTES = 16 * MIB
"""Of a worker that computes with compiled code: the code, and numba where it has to be compiled first."""
_GATHERED_LOGIT_BYTES = 4
"""Float32: as it comes from its rank, and in its row."""
_VOCABULARY_ENTRY_BYTES = 500
"""Of a token in a tokenizer: its text, both ways."""
_KEPT_BYTES = 60 * MIB
_KEPT_SHARE = 8
"""Freed memory that the C library keeps, for it takes blocks of under 32 MiB from its heap, where others lie between.
An eighth of the weights, up to so much, for what loading needed, and an eighth of the activations. Measured with glibc
on models of 0.6 to 620 MiB: 42 to 78 MiB together for the large ones, none to speak of for the small."""


class MemoryLedger(msgspec.Struct, frozen=True):
    """Where the memory goes. All sizes in bytes."""

    weight_bytes: int
    """Weights and tables of the loaded model."""
    activation_bytes: int
    """What the largest step holds beside weights and KV."""
    kv_bytes: int
    num_blocks: int
    block_bytes: int
    available_bytes: int
    max_full_length_requests: int
    """Requests of max_model_len tokens that fit at once."""
    runtime_bytes: int = 0
    """Interpreters, torch, vocabularies, and what the allocator keeps, of all processes."""
    board_bytes: int = 0
    """Slots of the boards."""
    graph_bytes: int = 0
    """Captured graphs; none on a CPU."""
    num_ranks: int = 1
    """That share the model; on a CPU all sizes are of all of them together."""
    surplus_bytes: int = 0
    """Of weights and KV: the zeros that fill shares up, and what several ranks hold."""

    @property
    def used_bytes(self) -> int:
        """All of it."""
        fixed = self.weight_bytes + self.activation_bytes + self.graph_bytes
        return fixed + self.kv_bytes + self.runtime_bytes + self.board_bytes


class DraftSizes(NamedTuple):
    """A model, or a head, that drafts."""

    shape: ModelShape
    arithmetic: Arithmetic
    num_head_elements: int | None = None
    """Of a head."""


def process_bytes_of(actors: Iterable[str], shape: ModelShape, *, is_compiled: bool) -> int:
    """What a process of these actors holds before it has work; `is_compiled`: its worker has the compiled step."""
    total = _PROCESS_BYTES
    for kind in map(kind_of, actors):
        total += _ACTOR_BYTES[kind]
        if kind == "worker" and is_compiled:
            total += _COMPILER_BYTES
        if kind == "tokenizer":
            total += _VOCABULARY_ENTRY_BYTES * shape.vocab_size
    return total


def kept_bytes_of(weight_bytes: int, activation_bytes: int) -> int:
    """Freed memory that the worker's allocator keeps."""
    return min(weight_bytes // _KEPT_SHARE, _KEPT_BYTES) + activation_bytes // _KEPT_SHARE


def runtime_bytes_of(
    topology: Topology, shape: ModelShape, weight_bytes: int, activation_bytes: int, *, is_compiled: bool
) -> int:
    """Interpreters, torch, vocabularies of all processes, and what the worker's allocator keeps."""
    all_actors = expand_actors(topology).values()
    processes = sum(process_bytes_of(actors, shape, is_compiled=is_compiled) for actors in all_actors)
    num_ranks = num_ranks_of(worker_process(topology))
    kept = num_ranks * kept_bytes_of(weight_bytes // num_ranks, activation_bytes // num_ranks)
    return _SUPERVISOR_BYTES + processes + kept


def plan_memory(
    topology: Topology,
    shape: ModelShape,
    available_bytes: int,
    arithmetic: Arithmetic,
    draft: DraftSizes | None = None,
) -> MemoryLedger:
    """Share out `available_bytes`, of a GPU's memory where the worker is on one: all else first, then the KV pool as
    `[kv_cache]` says. On a GPU it is an estimate; the worker measures, and decides.

    Without a size in `[kv_cache]` the pool takes a quarter of what is free, but no more than max_num_seqs requests of
    max_model_len can use, and no less than one of them needs; on a GPU nearly all. A null device holds no model.
    draft: a second model, whose keys and values have the same blocks: a block is of both.
    Raises NotEnoughMemory with all the numbers.
    """
    section = topology.kv_cache
    max_model_len = max_model_len_of(topology, shape)
    is_null = has_null_device(topology)
    is_gpu = has_gpu(topology)
    worker = worker_process(topology)
    num_ranks, num_sharers = (1, 1) if is_null else (num_ranks_of(worker), worker.tensor_parallel)
    local = Sharding(shape, num_sharers).local_shape if num_sharers > 1 else shape
    num_here = 1 if is_gpu else num_sharers  # each GPU has a memory of its own
    weight_bytes = 0 if is_null else num_here * _weight_bytes(local, arithmetic, max_model_len)
    weight_bytes += (num_ranks - num_sharers) * _table_bytes(shape, arithmetic, max_model_len)  # of each further stage
    block_bytes = num_here * block_bytes_of(local, section.block_size, arithmetic.kv_dtype_bytes)
    if draft is not None:
        weight_bytes += _draft_weight_bytes(draft, max_model_len)
        block_bytes += block_bytes_of(draft.shape, section.block_size, draft.arithmetic.kv_dtype_bytes)
    request_blocks = blocks_for(max_model_len, section.block_size)
    most_blocks = section.num_blocks or (section.memory_bytes or available_bytes - weight_bytes) // block_bytes
    limits = StepLimits(
        max_num_seqs=topology.scheduler.max_num_seqs,
        max_num_batched_tokens=topology.scheduler.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=section.block_size,
        pool_tokens=max(most_blocks, request_blocks) * section.block_size,
        num_threads=num_threads_of(worker, len(os.sched_getaffinity(0))),
    )
    graph_bytes = device_graph_bytes(topology) if is_gpu else 0
    if is_null:
        activation_bytes = 0
    elif is_gpu:
        activation_bytes = device_step_bytes(local, limits, arithmetic.dtype_bytes)
    else:
        with_logits = msgspec.structs.replace(local, vocab_size=shape.vocab_size)
        activation_bytes = num_ranks * _activation_bytes(with_logits, arithmetic, limits)
        if num_ranks > 1:
            activation_bytes += _exchanged_bytes(shape, arithmetic, limits, num_ranks)
        if draft is not None:
            activation_bytes += _activation_bytes(draft.shape, draft.arithmetic, limits) + _draft_bytes(topology, shape)
    is_compiled = bool(arithmetic.packed_bits)
    runtime_bytes = board_bytes = 0  # of a GPU's memory
    if not is_gpu:
        runtime_bytes = runtime_bytes_of(topology, shape, weight_bytes, activation_bytes, is_compiled=is_compiled)
        board_bytes = sum(b.num_slots * b.slot_bytes for b in plan_boards(topology, max_model_len, epoch=0))
        if num_ranks > 1:
            num_regions = worker.pipeline_parallel if num_sharers > 1 else 0
            board_bytes += num_regions * rank_region_layout(topology, shape).num_bytes
            board_bytes += sum(board.num_slots * board.slot_bytes for board in stage_boards(topology, shape))
    free_bytes = available_bytes - weight_bytes - activation_bytes - runtime_bytes - board_bytes - graph_bytes
    free_blocks = max(free_bytes, 0) // block_bytes
    if section.num_blocks is not None:
        num_blocks = section.num_blocks
    elif section.memory_bytes is not None:
        num_blocks = section.memory_bytes // block_bytes
    elif section.memory_share is not None:
        num_blocks = int(free_blocks * section.memory_share)
    elif is_gpu:
        num_blocks = int(free_blocks * DEVICE_POOL_SHARE)
    else:
        num_blocks = min(int(free_blocks * DEFAULT_MEMORY_SHARE), request_blocks * topology.scheduler.max_num_seqs)
        num_blocks = max(num_blocks, request_blocks)
    if is_null:  # as many blocks as the model would have, but at least enough, and next to nothing in them
        num_blocks, block_bytes = max(num_blocks, request_blocks), section.block_size * _NULL_TOKEN_BYTES
    whole_bytes = 0
    if num_ranks > 1:
        whole_block_bytes = block_bytes_of(shape, section.block_size, arithmetic.kv_dtype_bytes)
        whole_bytes = _weight_bytes(shape, arithmetic, max_model_len) + num_blocks * whole_block_bytes
    ledger = MemoryLedger(
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=num_blocks * block_bytes,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        available_bytes=available_bytes,
        max_full_length_requests=num_blocks // request_blocks,
        runtime_bytes=runtime_bytes,
        board_bytes=board_bytes,
        graph_bytes=graph_bytes,
        num_ranks=num_ranks,
        surplus_bytes=0
        if num_ranks == 1
        else weight_bytes + num_blocks * block_bytes - num_here * whole_bytes // num_sharers,
    )
    if not is_null:
        _check_ledger(ledger, topology, max_model_len, request_blocks, free_blocks)
    return ledger


def _weight_bytes(shape: ModelShape, arithmetic: Arithmetic, max_model_len: int) -> int:
    if arithmetic.packed_bits:
        return packed_weight_bytes(shape, arithmetic.packed_bits, max_model_len)
    return weight_bytes_of(shape, arithmetic, max_model_len)


def _table_bytes(shape: ModelShape, arithmetic: Arithmetic, max_model_len: int) -> int:
    """Cosines and sines."""
    return shape.num_rotary_tables * 2 * max_model_len * shape.head_dim * arithmetic.compute_bytes


def _activation_bytes(shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits) -> int:
    if arithmetic.packed_bits:
        return batch_and_sampling_bytes_of(shape, arithmetic, limits) + compiled_buffer_bytes(shape, limits)
    return activation_bytes_of(shape, arithmetic, limits)


def _exchanged_bytes(shape: ModelShape, arithmetic: Arithmetic, limits: StepLimits, num_ranks: int) -> int:
    """Of all ranks: what each was handed of the embedding by all, and the logits that rank 0 has put together."""
    embedded = num_ranks * limits.max_num_batched_tokens * shape.hidden_size * arithmetic.dtype_bytes
    return num_ranks * embedded + 2 * _GATHERED_LOGIT_BYTES * limits.max_num_seqs * shape.vocab_size


def _draft_weight_bytes(draft: DraftSizes, max_model_len: int) -> int:
    """Of a head: its tensors as they are computed with, and cosines and sines."""
    if draft.num_head_elements is None:
        return _weight_bytes(draft.shape, draft.arithmetic, max_model_len)
    return (draft.num_head_elements + 2 * max_model_len * draft.shape.head_dim) * draft.arithmetic.compute_bytes


def _draft_bytes(topology: Topology, shape: ModelShape) -> int:
    """What drafts were drawn from, where the rule of acceptance asks for it: as it is computed, and all together."""
    section = topology.speculative
    if section is None or section.acceptance == "coupled":
        return 0
    return 2 * topology.scheduler.max_num_seqs * section.max_tokens * shape.vocab_size * _PROBABILITY_BYTES


def _fixed_parts(ledger: MemoryLedger) -> str:
    """What stands beside the model in the memory that is shared out."""
    if ledger.graph_bytes:
        return f"graphs {render_bytes(ledger.graph_bytes)}"
    return f"processes and boards {render_bytes(ledger.runtime_bytes + ledger.board_bytes)}"


def _check_ledger(
    ledger: MemoryLedger, topology: Topology, max_model_len: int, request_blocks: int, free_blocks: int
) -> None:
    section = topology.kv_cache
    numbers = (
        f"weights {render_bytes(ledger.weight_bytes)} + activations {render_bytes(ledger.activation_bytes)} + "
        f"{_fixed_parts(ledger)} + "
        f"KV {render_bytes(ledger.kv_bytes)} ({ledger.num_blocks:,} blocks of {render_bytes(ledger.block_bytes)}), "
        f"available {render_bytes(ledger.available_bytes)}"
    )
    if free_blocks == 0:
        raise NotEnoughMemory(
            f"the model does not fit: {numbers}",
            advice="use a smaller model or dtype, or lower [scheduler] max_num_batched_tokens or max_num_seqs",
        )
    fitting = min(free_blocks, ledger.num_blocks) * section.block_size
    if ledger.num_blocks > free_blocks:
        if section.num_blocks is not None:
            advice = f"lower [kv_cache] num_blocks to {free_blocks:,} or less"
        elif section.memory_bytes is not None:
            advice = f"lower [kv_cache] memory_bytes to {free_blocks * ledger.block_bytes:,} or less"
        else:
            advice = f"lower [model] max_model_len to {fitting:,} or less"
        raise NotEnoughMemory(f"the KV pool does not fit: {numbers}", advice=advice)
    if ledger.num_blocks < request_blocks:
        raise NotEnoughMemory(
            f"the KV pool holds {fitting:,} tokens, one request of max_model_len {max_model_len:,} needs "
            f"{request_blocks:,} blocks ({render_bytes(request_blocks * ledger.block_bytes)}): {numbers}",
            advice=(
                f"lower [model] max_model_len to {fitting:,} or less, or give the pool more"
                if fitting
                else "raise [kv_cache] num_blocks, memory_bytes or memory_share"
            ),
        )
