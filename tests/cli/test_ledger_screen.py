"""A request's ledger as lines: every part of its time is there, with its share."""

from __future__ import annotations

from msgspec.structs import replace

from callboard.cli.ledger_screen import format_ledger
from callboard.mailbox.messages.requests import PreemptionRecord, RequestLedger, WaitTime

LEDGER = RequestLedger(
    choice=1,
    state="STOPPED",
    arrival_ns=0,
    queued_ns=10_000_000,
    ended_ns=1_000_000_000,
    waiting=WaitTime(blocks_ns=240_000_000, sequences_ns=50_000_000),
    prefill_ns=100_000_000,
    decode_ns=600_000_000,
    num_prompt_tokens=2050,
    num_output_tokens=300,
    num_cached_tokens=16,
    chunks=(512, 512, 512, 512, 2),
    preemptions=(PreemptionRecord(17, "blocks", 1024),),
    num_recomputed_tokens=1008,
    num_draft_tokens=10,
    num_accepted_tokens=5,
    num_chunks=5,
    num_preemptions=1,
)


def test_every_part_is_shown_with_its_share_and_nothing_that_is_zero() -> None:
    lines = format_ledger("cmpl-1", LEDGER, now_ns=5)
    assert lines[0] == "cmpl-1#1: STOPPED; 1,000.0 ms since its arrival"
    assert lines[1] == "  2,050 prompt tokens, 16 of them found in the cache; 300 output tokens"
    shares = [line.split()[:3] for line in lines if "%" in line and " ms " in line]
    assert shares == [
        ["10.0", "ms", "1.0%"],
        ["50.0", "ms", "5.0%"],
        ["240.0", "ms", "24.0%"],
        ["100.0", "ms", "10.0%"],
        ["600.0", "ms", "60.0%"],
    ]
    text = "\n".join(lines)
    assert "max_num_seqs" in text and "KV blocks were short" in text and "grammar" not in text
    assert "computed in 5 chunks of 512, 512, 512, 512, 2 tokens" in text
    assert "preempted at step 17 (blocks): 1,024 tokens lost" in text
    assert "1,008 tokens computed more than once" in text and "5 of 10 drafts accepted (50%)" in text


def test_what_is_not_told_one_by_one_is_counted() -> None:
    text = "\n".join(format_ledger("r", replace(LEDGER, num_chunks=1300, num_preemptions=41), now_ns=5))
    assert "computed in 1,300 chunks of 512, 512, 512, 512, 2, ... tokens" in text
    assert "preempted at step 17 (blocks)" in text and "preempted 40 times more" in text


def test_one_that_lives_is_told_up_to_now_with_what_it_waits_for() -> None:
    ledger = RequestLedger(
        choice=0,
        state="WAITING",
        arrival_ns=0,
        queued_ns=0,
        ended_ns=None,
        waiting=WaitTime(budget_ns=20_000_000_000),
        prefill_ns=0,
        decode_ns=0,
        num_prompt_tokens=5,
        num_output_tokens=0,
        num_cached_tokens=0,
        chunks=(),
        preemptions=(),
        num_recomputed_tokens=0,
        waits_for="budget",
    )
    lines = format_ledger("r", ledger, now_ns=20_000_000_000)
    assert lines[0] == "r#0: WAITING, waits for budget; 20.00 s since its arrival"
    assert lines[2].split()[:3] == ["20.00", "s", "100.0%"] and len(lines) == 3
