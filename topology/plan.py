"""What follows from a topology by arithmetic: the actors' names, the links between them, lengths and sizes of blocks.

Sizes are in bytes, lengths in tokens.
"""

from __future__ import annotations

import msgspec

from ..checkpoints.shape import ModelShape
from .schema import NULL_DEVICE, ProcessSection, Topology

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
    `frontend.0`, `frontend.1`, ... A worker of several ranks is as many processes: `worker.0` with the actor
    `worker.0`, ... The topology has passed `ensure_valid`.
    """
    kinds = [split_kind(actor) for process in topology.process for actor in process.actors * num_ranks_of(process)]
    totals: dict[str, int] = {}
    for kind, count in kinds:
        totals[kind] = totals.get(kind, 0) + count
    used: dict[str, int] = {}
    expanded: dict[str, tuple[str, ...]] = {}
    for process in topology.process:
        for process_name in processes_of(process):
            names: list[str] = []
            for kind, count in map(split_kind, process.actors):
                first = used.get(kind, 0)
                used[kind] = first + count
                names += [kind if totals[kind] == 1 else f"{kind}.{first + i}" for i in range(count)]
            expanded[process_name] = tuple(names)
    return expanded


def num_ranks_of(section: ProcessSection) -> int:
    """Processes that a `[[process]]` stands for: one a rank of its worker."""
    return section.tensor_parallel * section.pipeline_parallel


def processes_of(section: ProcessSection) -> tuple[str, ...]:
    """Their names, in the order of the ranks. They share one fate."""
    num_ranks = num_ranks_of(section)
    return (section.name,) if num_ranks == 1 else tuple(f"{section.name}.{rank}" for rank in range(num_ranks))


def section_of(topology: Topology, process: str) -> ProcessSection:
    """The `[[process]]` that a process is of."""
    return next(section for section in topology.process if process in processes_of(section))


def rank_of(actor: str) -> int:
    """`worker.2` -> 2, `worker` -> 0."""
    return int(actor.partition(".")[2] or 0)


def output_rank_of(section: ProcessSection) -> int:
    """The rank that samples: the first of the last stage. Ranks of a stage have numbers side by side."""
    return (section.pipeline_parallel - 1) * section.tensor_parallel


def num_threads_of(section: ProcessSection, num_cores: int) -> int:
    """Compute threads of each rank of a worker."""
    return section.threads or max(1, num_cores // num_ranks_of(section))


class MailboxLink(msgspec.Struct, frozen=True):
    """One direction between two actors that talk by mailbox."""

    sender: str
    receiver: str
    is_local: bool
    """Both are in one process: messages pass by reference."""


_PAIRS = (
    ("frontend", "tokenizer", True),
    ("tokenizer", "scheduler", True),
    ("scheduler", "grammar", True),
    ("tokenizer", "grammar", False),
)
"""Kinds between whose actors there are mailboxes, and whether both ways."""


def mailbox_links(topology: Topology) -> tuple[MailboxLink, ...]:
    """Every ordered pair of actors with a mailbox between: frontends and tokenizers, tokenizers and the scheduler, both
    ways; tokenizers to the grammar actor, and that and the scheduler."""
    process_of = {actor: name for name, actors in expand_actors(topology).items() for actor in actors}
    by_kind: dict[str, list[str]] = {}
    for actor in process_of:
        by_kind.setdefault(kind_of(actor), []).append(actor)
    links: list[MailboxLink] = []
    for one, other, is_answered in _PAIRS:
        for a in by_kind.get(one, []):
            for b in by_kind.get(other, []):
                is_local = process_of[a] == process_of[b]
                links.append(MailboxLink(a, b, is_local))
                if is_answered:
                    links.append(MailboxLink(b, a, is_local))
    return tuple(links)


# Lengths and sizes


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


def block_bytes_of(shape: ModelShape, block_size: int, kv_dtype_bytes: int) -> int:
    """Bytes of one block over all layers."""
    return block_size * shape.kv_bytes_per_token(kv_dtype_bytes)


def max_model_len_of(topology: Topology, shape: ModelShape) -> int:
    """Longest prompt + output, tokens: the topology's, or else the model's own."""
    return topology.model.max_model_len or shape.max_position


def worker_process(topology: Topology) -> ProcessSection:
    """The process that holds the worker."""
    return next(p for p in topology.process if any(split_kind(actor)[0] == "worker" for actor in p.actors))


def has_constrained_drafts(topology: Topology) -> bool:
    """Whether rows under a grammar are drafted for: where one rank on a CPU sees what it draws and which masks came."""
    worker = worker_process(topology)
    is_host = worker.device in ("cpu", NULL_DEVICE)
    return topology.speculative is not None and is_host and num_ranks_of(worker) == 1


def has_null_device(topology: Topology) -> bool:
    """Whether the worker computes no model, so that there is none to hold."""
    return any(process.device == NULL_DEVICE for process in topology.process)
