"""A topology drawn in plain text: what runs where, who talks to whom and by what, and where the memory goes."""

from __future__ import annotations

import textwrap

from ..checkpoints.shape import ModelShape
from .boards import mask_layout, mask_positions, plan_boards
from .memory import MemoryLedger
from .plan import expand_actors, kind_of, mailbox_links, max_model_len_of, num_ranks_of, processes_of, split_kind
from .render import render_bytes
from .schema import ACTOR_KINDS, ProcessSection, RestartPolicy, Topology

WIDTH = 100
"""Columns, at most."""
_BOX = 62
"""Columns of a process's box, unless its title or an actor needs more."""
_BAR = 24
_ASCII = str.maketrans("┌┐└┘├┤─│▼▲⇄→█░…", "++++++-|v^=>#..")


def render_topology(topology: Topology, shape: ModelShape | None = None, ledger: MemoryLedger | None = None) -> str:
    """Processes, actors, links and boards of a valid topology; sizes of slots with `shape`; memory with `ledger`."""
    parts = [
        _render_model(topology, shape),
        _render_processes(topology),
        _render_mailboxes(topology),
        _render_boards(topology, shape),
    ]
    if ledger is not None:
        parts.append(render_ledger(topology, ledger))
    return "\n\n".join(parts) + "\n"


def as_ascii(drawing: str) -> str:
    """The drawing for a terminal or a pipe that takes no other characters."""
    return drawing.translate(_ASCII).encode("ascii", "backslashreplace").decode()


def render_ledger(topology: Topology, ledger: MemoryLedger) -> str:
    """Where the memory goes, and what the KV pool holds."""
    rows = [
        ("weights", ledger.weight_bytes, "with the rotary table, as they are packed"),
        ("KV cache", ledger.kv_bytes, f"{ledger.num_blocks:,} blocks of {render_bytes(ledger.block_bytes)}"),
        ("activations", ledger.activation_bytes, "of the largest step"),
        ("graphs", ledger.graph_bytes, "none on a CPU" if ledger.graph_bytes == 0 else ""),
        ("boards", ledger.board_bytes, "call and result" + (", between ranks" if ledger.num_ranks > 1 else "")),
        (
            "runtime",
            ledger.runtime_bytes,
            f"{len(expand_actors(topology)) + 1} processes: interpreters, torch, allocators",
        ),
        ("left free", ledger.available_bytes - ledger.used_bytes, ""),
        ("available", ledger.available_bytes, ""),
    ]
    lines = ["memory"]
    for name, size, note in rows:
        filled = min(_BAR, round(_BAR * max(size, 0) / max(ledger.available_bytes, 1)))
        bar = "█" * filled + "░" * (_BAR - filled)
        lines.append(f"  {name:<11}  {render_bytes(size):>10}  {bar}  {note}".rstrip())
    num_tokens = ledger.num_blocks * topology.kv_cache.block_size
    lines.append(
        f"  the KV cache holds {num_tokens:,} tokens, "
        f"{ledger.max_full_length_requests:,} request{'s' if ledger.max_full_length_requests != 1 else ''} "
        f"of full length at once"
    )
    if ledger.num_ranks > 1:
        lines.append(
            f"  of weights and KV cache {render_bytes(ledger.surplus_bytes)} are zeros that fill shares up, or held by "
            f"several of the {ledger.num_ranks} ranks"
        )
    return "\n".join(lines)


def _render_model(topology: Topology, shape: ModelShape | None) -> str:
    model = topology.model
    length = max_model_len_of(topology, shape) if shape is not None else model.max_model_len
    kv_dtype = "as dtype" if model.kv_dtype == "auto" else model.kv_dtype
    lines = [
        f"model   {model.source}",
        f"        dtype {model.dtype}, KV {kv_dtype}, max_model_len {f'{length:,}' if length else 'of the model'}",
        f"serves  http://{_host(topology.server.host)}:{topology.server.port or 'any free port'}",
    ]
    if shape is not None:
        lines[1:1] = [
            f"        {shape.architecture}, {shape.num_layers} layers, {shape.num_heads} heads, "
            f"{shape.num_kv_heads} KV heads, {shape.num_parameters:,} parameters"
        ]
    return "\n".join(line if len(line) <= WIDTH else line[: WIDTH - 1] + "…" for line in lines)


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _render_processes(topology: Topology) -> str:
    """One box a process, under the supervisor that starts and watches them."""
    actors = expand_actors(topology)
    lines = ["supervisor"]
    for index, process in enumerate(topology.process):
        is_last = index == len(topology.process) - 1
        names = processes_of(process)
        named = process.name if len(names) == 1 else f"{names[0]} .. {names[-1]}"
        title = f"─ process{'es' if len(names) > 1 else ''} {named}{_placement(process)} "
        held = [actor for name in names for actor in actors[name]]
        width = max(_BOX, len(title) + 1, *(len(actor) + 2 for actor in held))
        content = textwrap.wrap("   ".join(held), width - 2)
        if (restart := process.restart) != RestartPolicy():
            content.append(f"at most {restart.max:,} restarts within {restart.within_s:g} s")
        stem, joint = ("  ", "└─") if is_last else ("│ ", "├─")
        lines += [
            "│",
            f"{joint}┌{title.ljust(width, '─')}┐",
            *(f"{stem}│ {line.ljust(width - 2)} │" for line in content),
            f"{stem}└{'─' * width}┘",
        ]
    return "\n".join(lines)


def _placement(process: ProcessSection) -> str:
    words = []
    if any(split_kind(actor)[0] == "worker" for actor in process.actors):
        words.append(process.device)
        if process.threads is not None:
            words.append(f"{process.threads} threads" + (" each" if num_ranks_of(process) > 1 else ""))
    return f" ({', '.join(words)})" if words else ""


def _render_mailboxes(topology: Topology) -> str:
    """Links that differ only in the number of their actors stand in one line."""
    receivers: dict[tuple[str, str, bool, str], list[str]] = {}
    links = {(link.sender, link.receiver): link for link in mailbox_links(topology)}
    for (sender, receiver), link in links.items():
        is_answered = (receiver, sender) in links
        if not is_answered or ACTOR_KINDS.index(kind_of(sender)) < ACTOR_KINDS.index(kind_of(receiver)):
            ends = (sender, kind_of(receiver), link.is_local, "⇄" if is_answered else "→")
            receivers.setdefault(ends, []).append(receiver)
    senders: dict[tuple[tuple[str, ...], bool, str], list[str]] = {}
    for (sender, _, is_local, arrow), names in receivers.items():
        senders.setdefault((tuple(names), is_local, arrow), []).append(sender)
    rows = [
        (", ".join(left), arrow, ", ".join(names), "by reference" if is_local else "ZMQ ipc")
        for (names, is_local, arrow), left in senders.items()
    ]
    left_width, right_width = (min(max(len(row[side]) for row in rows), 36) for side in (0, 2))
    lines = ["mailboxes"]
    for left, arrow, right, transport in rows:
        left_lines, right_lines = textwrap.wrap(left, left_width), textwrap.wrap(right, right_width)
        height = max(len(left_lines), len(right_lines))
        for number in range(height):
            a = left_lines[number] if number < len(left_lines) else ""
            b = right_lines[number] if number < len(right_lines) else ""
            middle, end = (arrow, transport) if number == 0 else (" ", "")
            lines.append(f"  {a:<{left_width}} {middle} {b:<{right_width}}  {end}".rstrip())
    return "\n".join(lines)


def _render_boards(topology: Topology, shape: ModelShape | None) -> str:
    length = max_model_len_of(topology, shape) if shape is not None else topology.model.max_model_len
    call, result = plan_boards(topology, length or 1, epoch=0)
    depth = topology.scheduler.pipeline_depth
    lines = [f"boards (shared memory; pipeline depth {depth}: {depth} step{'s' if depth > 1 else ''} in flight)"]
    for board, direction in ((call, "scheduler → worker   step plans"), (result, "worker → scheduler   results   ")):
        size = f" of {render_bytes(board.slot_bytes)}" if length is not None else ""
        lines.append(f"  {board.name:<6}  {direction}  {board.num_slots} slots{size}")
    if any(kind_of(actor) == "grammar" for actors in expand_actors(topology).values() for actor in actors):
        size = "" if shape is None else f" of {render_bytes(4 * mask_layout(topology, shape).num_words)}"
        lines.append(
            f"  masks   grammar → worker     bitmasks    "
            f"{topology.scheduler.max_num_seqs * mask_positions(topology)} slots{size}"
        )
    return "\n".join(lines)
