"""A request's ledger for people: where its time went."""

from __future__ import annotations

from ..mailbox.messages.requests import RequestLedger

_BAR_CELLS = 30
_CAUSES = {
    "budget_ns": "waiting: the step's token budget was used up",
    "sequences_ns": "waiting: all rows were taken (max_num_seqs)",
    "blocks_ns": "waiting: KV blocks were short",
    "grammar_ns": "waiting: its grammar was being compiled",
    "adapter_ns": "waiting: no adapter slot was free",
    "remote_kv_ns": "waiting: its keys and values were on their way",
    "input_ns": "waiting: for more input from its client",
    "priority_ns": "waiting: later requests went first",
    "worker_ns": "waiting: no worker was attached, or a trial ran",
}


def format_ledger(request_id: str, ledger: RequestLedger, now_ns: int) -> list[str]:
    """Lines: what it is, where its time went (largest parts as bars), chunks, preemptions. `now_ns` while it lives."""
    end_ns = now_ns if ledger.ended_ns is None else ledger.ended_ns
    total_ns = max(0, end_ns - ledger.arrival_ns)
    state = f"{ledger.state}, waits for {ledger.waits_for}" if ledger.waits_for else ledger.state
    lines = [
        f"{request_id}#{ledger.choice}: {state}; {_seconds(total_ns)} since its arrival",
        f"  {ledger.num_prompt_tokens:,} prompt tokens, {ledger.num_cached_tokens:,} of them found in the cache; "
        f"{ledger.num_output_tokens:,} output tokens",
    ]
    for what, part_ns in _parts(ledger):
        if part_ns > 0:
            share = part_ns / total_ns if total_ns else 0.0
            bar = "█" * round(share * _BAR_CELLS)
            lines.append(f"  {_seconds(part_ns):>12}  {share:6.1%}  {bar:<{_BAR_CELLS}}  {what}")
    if ledger.chunks:
        lines.append(f"  computed in {ledger.num_chunks:,} chunks of {_shortened(ledger)} tokens")
    for record in ledger.preemptions:
        lines.append(f"  preempted at step {record.step} ({record.cause}): {record.num_lost_tokens:,} tokens lost")
    if ledger.num_preemptions > len(ledger.preemptions):
        lines.append(f"  preempted {ledger.num_preemptions - len(ledger.preemptions):,} times more")
    if ledger.num_recomputed_tokens:
        lines.append(f"  {ledger.num_recomputed_tokens:,} tokens computed more than once")
    if ledger.num_draft_tokens:
        share = ledger.num_accepted_tokens / ledger.num_draft_tokens
        lines.append(f"  {ledger.num_accepted_tokens:,} of {ledger.num_draft_tokens:,} drafts accepted ({share:.0%})")
    return lines


def _parts(ledger: RequestLedger) -> list[tuple[str, int]]:
    """Every part of its time, in the order of a request's life."""
    waits = [(text, int(getattr(ledger.waiting, name))) for name, text in _CAUSES.items()]
    return [
        ("before the scheduler: tokenizing, transport", ledger.queued_ns - ledger.arrival_ns),
        *waits,
        ("prefill", ledger.prefill_ns),
        ("decode", ledger.decode_ns),
    ]


def _shortened(ledger: RequestLedger, most: int = 16) -> str:
    chunks = ledger.chunks[:most]
    shown = ", ".join(f"{chunk:,}" for chunk in chunks)
    return f"{shown}, ..." if ledger.num_chunks > len(chunks) else shown


def _seconds(time_ns: int) -> str:
    return f"{time_ns / 1e6:,.1f} ms" if time_ns < 10e9 else f"{time_ns / 1e9:,.2f} s"
