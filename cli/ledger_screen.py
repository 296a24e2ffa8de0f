"""A request's ledger for a person: where the time of one choice went, a part a line."""

from __future__ import annotations

from collections.abc import Sequence

from ..mailbox.messages.requests import RequestLedger

_WAITS = {
    "budget_ns": "waiting for the step's tokens",
    "sequences_ns": "waiting for a row",
    "blocks_ns": "waiting for KV blocks",
    "grammar_ns": "waiting for its grammar",
    "adapter_ns": "waiting for its adapter",
    "remote_kv_ns": "waiting for remote KV",
    "input_ns": "waiting for input",
    "priority_ns": "waiting behind others",
    "worker_ns": "waiting for a worker",
}
_WIDTH = 32
_MAX_CHUNKS = 16


def ledger_lines(ledger: RequestLedger) -> list[str]:
    """The lines of one choice. Parts in which it spent no time are left out; the percentages are of its time so far."""
    waits = {text: int(getattr(ledger.waiting, name)) for name, text in _WAITS.items()}
    parts = {
        "before the scheduler": ledger.queued_ns - ledger.arrival_ns,
        **waits,
        "prefill": ledger.prefill_ns,
        "decode": ledger.decode_ns,
    }
    now = f", waits for {ledger.waits_for}" if ledger.waits_for else ""
    return [
        f"choice {ledger.choice}: {ledger.state}{now}",
        f"  prompt {ledger.num_prompt_tokens:,} tokens, {ledger.num_cached_tokens:,} of them cached; "
        f"output {ledger.num_output_tokens:,} tokens",
        *part_lines(parts),
        *_work_lines(ledger),
    ]


def part_lines(parts: dict[str, int]) -> list[str]:
    """Names and nanoseconds, and what they are together."""
    total = sum(parts.values())
    lines = [
        f"  {name:<{_WIDTH}} {nanoseconds / 1e6:>12,.3f} ms {nanoseconds / total:>7.1%}"
        for name, nanoseconds in parts.items()
        if nanoseconds
    ]
    return [*lines, f"  {'together':<{_WIDTH}} {total / 1e6:>12,.3f} ms"]


def _work_lines(ledger: RequestLedger) -> list[str]:
    lines = []
    if ledger.chunks:
        lines.append(f"  prompt in {len(ledger.chunks)} chunks: {_listed(ledger.chunks)}")
    lines += [
        f"  preempted at step {preemption.step:,} ({preemption.cause}), {preemption.num_lost_tokens:,} tokens lost"
        for preemption in ledger.preemptions
    ]
    if ledger.num_recomputed_tokens:
        lines.append(f"  {ledger.num_recomputed_tokens:,} tokens computed more than once")
    if ledger.num_draft_tokens:
        lines.append(f"  {ledger.num_accepted_tokens:,} of {ledger.num_draft_tokens:,} drafted tokens accepted")
    return lines


def _listed(chunks: Sequence[int]) -> str:
    shown = ", ".join(f"{chunk:,}" for chunk in chunks[:_MAX_CHUNKS])
    return shown if len(chunks) <= _MAX_CHUNKS else f"{shown}, ... {chunks[-1]:,}"
