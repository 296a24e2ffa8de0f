"""A topology drawn in plain text: what runs where, who talks to whom and by what, and where the memory goes."""

from __future__ import annotations

from ..checkpoints.shape import ModelShape
from .boards import plan_boards
from .plan import MemoryLedger, expand_actors, mailbox_links, max_model_len_of, render_bytes, split_kind
from .schema import ProcessSection, Topology


def render_topology(topology: Topology, shape: ModelShape | None = None, ledger: MemoryLedger | None = None) -> str:
    """Processes, actors, links and boards of a valid topology; sizes of slots with `shape`; memory with `ledger`."""
    parts = [
        _render_model(topology, shape),
        _render_processes(topology),
        _render_links(topology),
        _render_boards(topology, shape),
    ]
    if ledger is not None:
        parts.append(_render_ledger(topology, ledger))
    return "\n\n".join(parts) + "\n"


def _render_model(topology: Topology, shape: ModelShape | None) -> str:
    model = topology.model
    length = max_model_len_of(topology, shape) if shape is not None else model.max_model_len
    lines = [
        f"model   {model.source}",
        f"        dtype {model.dtype}, KV {model.kv_dtype}, "
        f"max_model_len {f'{length:,}' if length is not None else 'of the model'}",
        f"serves  http://{topology.server.host}:{topology.server.port}",
    ]
    if shape is not None:
        lines[1:1] = [
            f"        {shape.architecture}, {shape.num_layers} layers, {shape.num_heads} heads, "
            f"{shape.num_kv_heads} KV heads, {shape.num_parameters:,} parameters"
        ]
    return "\n".join(lines)


def _render_processes(topology: Topology) -> str:
    actors = expand_actors(topology)
    lines = ["supervisor"]
    for i, process in enumerate(topology.process):
        is_last = i == len(topology.process) - 1
        lines.append(f"{'└' if is_last else '├'}── process {process.name}{_placement(process)}")
        stem = "    " if is_last else "│   "
        names = actors[process.name]
        lines += [f"{stem}{'└' if j == len(names) - 1 else '├'}── {name}" for j, name in enumerate(names)]
    return "\n".join(lines)


def _placement(process: ProcessSection) -> str:
    kinds = {split_kind(actor)[0] for actor in process.actors}
    if "worker" not in kinds:
        return ""
    threads = f", {process.threads} threads" if process.threads is not None else ""
    restart = ""
    if kinds == {"worker"}:
        restart = f", {process.restart.max} restarts within {process.restart.within_s:g} s"
    return f"  ({process.device}{threads}{restart})"


def _render_links(topology: Topology) -> str:
    lines = ["mailboxes"]
    links = mailbox_links(topology)
    width = max((len(link.sender) for link in links), default=0)
    target = max((len(link.receiver) for link in links), default=0)
    for link in links:
        transport = "by reference" if link.is_local else "ZMQ ipc"
        lines.append(f"  {link.sender:<{width}} → {link.receiver:<{target}}  {transport}")
    return "\n".join(lines)


def _render_boards(topology: Topology, shape: ModelShape | None) -> str:
    length = max_model_len_of(topology, shape) if shape is not None else topology.model.max_model_len
    call, result = plan_boards(topology, length or 1, epoch=0)
    lines = [f"boards (pipeline depth {topology.scheduler.pipeline_depth})"]
    for board, direction in ((call, "scheduler → worker"), (result, "worker → scheduler")):
        size = f" of {render_bytes(board.slot_bytes)}" if length is not None else ""
        lines.append(f"  {board.name:<6}  {direction}  {board.num_slots} slots{size}")
    return "\n".join(lines)


def _render_ledger(topology: Topology, ledger: MemoryLedger) -> str:
    rest = ledger.available_bytes - ledger.weight_bytes - ledger.activation_bytes - ledger.kv_bytes
    rows = (
        ("weights", ledger.weight_bytes, ""),
        ("activations", ledger.activation_bytes, ""),
        (
            "KV cache",
            ledger.kv_bytes,
            f"{ledger.num_blocks:,} blocks of {render_bytes(ledger.block_bytes)}, "
            f"{ledger.num_blocks * topology.kv_cache.block_size:,} tokens, "
            f"{ledger.max_full_length_requests:,} requests of full length",
        ),
        ("left free", rest, ""),
        ("available", ledger.available_bytes, ""),
    )
    lines = (f"  {name:<11}  {render_bytes(size):>10}  {note}".rstrip() for name, size, note in rows)
    return "\n".join(["memory", *lines])
