"""What follows from a topology by arithmetic: the actors' names, the links between them, and the memory.

Sizes are in bytes, lengths in tokens. Data types are given as bytes an element: "auto" was resolved before.
"""

from __future__ import annotations

import msgspec

from ..checkpoints.shape import ModelShape
from ..errors import NotEnoughMemory
from .schema import NULL_DEVICE, Topology

DEFAULT_MEMORY_SHARE = 0.25
"""Of the memory that weights and activations leave free, for the KV pool on a CPU."""
_NULL_TOKEN_BYTES = 8
"""What a null device holds of a token in its pool."""


# Actors


def split_kind(actor: str) -> tuple[str, int]:
    """`frontend*2` -> ("frontend", 2); `frontend` -> ("frontend", 1). Raises ValueError if the count is no number."""
    kind, star, count = actor.partition("*")
    return kind.strip(), int(count) if star else 1


def kind_of(actor: str) -> str:
    """`frontend.1` -> `frontend`: the kind of an expanded actor name."""
    return actor.partition(".")[0]


def expand_actors(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Process name -> names of its actors, in the order of the file.

    An actor that is the only one of its kind is called by its kind; several are numbered through all processes:
    `frontend.0`, `frontend.1`, ... The topology has passed `ensure_valid`.
    """
    kinds = [split_kind(actor) for process in topology.process for actor in process.actors]
    totals: dict[str, int] = {}
    for kind, count in kinds:
        totals[kind] = totals.get(kind, 0) + count
    used: dict[str, int] = {}
    expanded: dict[str, tuple[str, ...]] = {}
    for process in topology.process:
        names: list[str] = []
        for kind, count in map(split_kind, process.actors):
            first = used.get(kind, 0)
            used[kind] = first + count
            names += [kind if totals[kind] == 1 else f"{kind}.{first + i}" for i in range(count)]
        expanded[process.name] = tuple(names)
    return expanded


class MailboxLink(msgspec.Struct, frozen=True):
    """One direction between two actors that talk by mailbox."""

    sender: str
    receiver: str
    is_local: bool
    """Both are in one process: messages pass by reference."""


def mailbox_links(topology: Topology) -> tuple[MailboxLink, ...]:
    """Every ordered pair of actors with a mailbox between: frontends and tokenizers, tokenizers and the scheduler."""
    process_of = {actor: name for name, actors in expand_actors(topology).items() for actor in actors}
    by_kind: dict[str, list[str]] = {}
    for actor in process_of:
        by_kind.setdefault(kind_of(actor), []).append(actor)
    links: list[MailboxLink] = []
    for one, other in (("frontend", "tokenizer"), ("tokenizer", "scheduler")):
        for a in by_kind.get(one, []):
            for b in by_kind.get(other, []):
                is_local = process_of[a] == process_of[b]
                links += [MailboxLink(a, b, is_local), MailboxLink(b, a, is_local)]
    return tuple(links)


# Memory


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def block_bytes_of(shape: ModelShape, block_size: int, kv_dtype_bytes: int) -> int:
    """Bytes of one block over all layers."""
    return block_size * shape.kv_bytes_per_token(kv_dtype_bytes)


def max_model_len_of(topology: Topology, shape: ModelShape) -> int:
    """Longest prompt + output, tokens: the topology's, or else the model's own."""
    return topology.model.max_model_len or shape.max_position


class MemoryLedger(msgspec.Struct, frozen=True):
    """Where the memory goes. All sizes in bytes."""

    weight_bytes: int
    """Weights and tables of the loaded model: an estimate within 5 %."""
    activation_bytes: int
    """What the largest step holds beside weights and KV: an estimate, rounded up."""
    kv_bytes: int
    num_blocks: int
    block_bytes: int
    available_bytes: int
    max_full_length_requests: int
    """Requests of max_model_len tokens that fit at once."""


def weight_bytes_of(topology: Topology, shape: ModelShape, dtype_bytes: int) -> int:
    """What a loaded model holds, within 5 %: its parameters, the rotary table, and on a CPU a tied head once more.

    dtype_bytes: bytes an element of the model's dtype. A CPU multiplies packed matrices only, so the head cannot share
    the embedding. bfloat16 takes two bytes where the CPU has no arithmetic for it too (it is packed as float16); only
    without AVX2 is it widened to four, which is not foreseen here. The table, cosines and sines of max_model_len
    positions, is taken as float32, as it is but where the CPU multiplies bfloat16.
    """
    workers = (
        process for process in topology.process if any(split_kind(actor)[0] == "worker" for actor in process.actors)
    )
    is_head_copied = shape.tie_word_embeddings and any(process.device == "cpu" for process in workers)
    num_elements = shape.num_parameters + (shape.vocab_size * shape.hidden_size if is_head_copied else 0)
    return num_elements * dtype_bytes + 4 * 2 * max_model_len_of(topology, shape) * shape.head_dim


def activation_bytes_of(topology: Topology, shape: ModelShape) -> int:
    """The largest step in float32: hidden states (input, residual, normalised, output), q/k/v, attention output and
    the MLP's three for every token of the budget, and logits, processed logits and noise for every row."""
    attention = (2 * shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    per_token = 4 * shape.hidden_size + attention + 3 * shape.intermediate_size
    scheduler = topology.scheduler
    return 4 * (scheduler.max_num_batched_tokens * per_token + 3 * scheduler.max_num_seqs * shape.vocab_size)


def has_null_device(topology: Topology) -> bool:
    """Whether the worker computes no model, so that there is none to hold."""
    return any(process.device == NULL_DEVICE for process in topology.process)


def plan_memory(
    topology: Topology,
    shape: ModelShape,
    available_bytes: int,
    *,
    dtype_bytes: int,
    kv_dtype_bytes: int,
) -> MemoryLedger:
    """Share out `available_bytes`: weights and activations first, then the KV pool as `[kv_cache]` says.

    Without a size in `[kv_cache]` the pool takes a quarter of what is free, but no more than max_num_seqs requests of
    max_model_len can use, and no less than one of them needs. A null device holds no model.
    Raises NotEnoughMemory with all the numbers.
    """
    section = topology.kv_cache
    max_model_len = max_model_len_of(topology, shape)
    is_null = has_null_device(topology)
    weight_bytes = 0 if is_null else weight_bytes_of(topology, shape, dtype_bytes)
    activation_bytes = 0 if is_null else activation_bytes_of(topology, shape)
    block_bytes = block_bytes_of(shape, section.block_size, kv_dtype_bytes)
    request_blocks = blocks_for(max_model_len, section.block_size)
    free_bytes = available_bytes - weight_bytes - activation_bytes
    free_blocks = max(free_bytes, 0) // block_bytes
    if section.num_blocks is not None:
        num_blocks = section.num_blocks
    elif section.memory_bytes is not None:
        num_blocks = section.memory_bytes // block_bytes
    elif section.memory_share is not None:
        num_blocks = int(free_blocks * section.memory_share)
    else:
        num_blocks = min(int(free_blocks * DEFAULT_MEMORY_SHARE), request_blocks * topology.scheduler.max_num_seqs)
        num_blocks = max(num_blocks, request_blocks)
    if is_null:  # as many blocks as the model would have, but at least enough, and next to nothing in them
        num_blocks, block_bytes = max(num_blocks, request_blocks), section.block_size * _NULL_TOKEN_BYTES
    ledger = MemoryLedger(
        weight_bytes=weight_bytes,
        activation_bytes=activation_bytes,
        kv_bytes=num_blocks * block_bytes,
        num_blocks=num_blocks,
        block_bytes=block_bytes,
        available_bytes=available_bytes,
        max_full_length_requests=num_blocks // request_blocks,
    )
    if not is_null:
        _check_ledger(ledger, topology, max_model_len, request_blocks, free_blocks)
    return ledger


def render_bytes(num_bytes: int) -> str:
    """`734.4 MiB`; exact under 1 KiB."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes} B"
    size = num_bytes / 1024
    for unit in ("KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"


def _check_ledger(
    ledger: MemoryLedger, topology: Topology, max_model_len: int, request_blocks: int, free_blocks: int
) -> None:
    section = topology.kv_cache
    numbers = (
        f"weights {render_bytes(ledger.weight_bytes)} + activations {render_bytes(ledger.activation_bytes)} + "
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
