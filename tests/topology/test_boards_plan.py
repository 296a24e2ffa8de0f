"""The slots of the boards hold the largest plan and the largest result that the limits allow."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.mailbox.messages.sampling import RepetitionDetection, SamplingParams
from callboard.mailbox.messages.steps import (
    NewRow,
    PromptLogprobs,
    StepOutcome,
    StepPlan,
    StepResult,
)
from callboard.topology import (
    blocks_for,
    load_topology,
    max_plan_blocks,
    max_plan_tokens,
    plan_boards,
    topology_from,
)
from callboard.topology.boards import MAX_ERROR_CHARS, MAX_SAMPLING_ENTRIES, TOKENS_PER_SAMPLING_ENTRY

LARGE = 2**63 - 1


def topology_with(max_num_seqs=64, max_num_batched_tokens=2048, block_size=16, pipeline_depth=2):
    return topology_from(
        "m",
        [
            f"scheduler.max_num_seqs={max_num_seqs}",
            f"scheduler.max_num_batched_tokens={max_num_batched_tokens}",
            f"scheduler.pipeline_depth={pipeline_depth}",
            f"kv_cache.block_size={block_size}",
        ],
    )


def sampling_with(num_entries: int = 0) -> SamplingParams:
    """Every number at its limit, and `num_entries` entries, of the kind that takes the most bytes."""
    return SamplingParams(
        seed=2**64 - 1, temperature=0.1, top_k=2**31, top_p=0.1, min_p=0.1, max_tokens=2**31, ignore_eos=True,
        logprobs=20, presence_penalty=0.1, frequency_penalty=0.1, repetition_penalty=0.1, min_tokens=2**31,
        include_stop_str_in_output=True, prompt_logprobs=20, processed_logprobs=True,
        repetition_detection=RepetitionDetection(2**31, 2**31, 2**31),
        logit_bias=tuple((2**31 - 1 - i, 0.1) for i in range(num_entries)),
    )  # fmt: skip


def encoded_bytes(topology, lengths, num_appended=0, entries=(), num_drafts=0):
    """Bytes of the plan in which every row is removed, taken by a new request of `lengths[i]` known tokens (none if
    `lengths` is empty) and `entries[i]` (0 where it ends) in its lists, and scheduled, with every string and number at
    its limit; `num_drafts`: of all rows."""
    depth, block_size = topology.scheduler.pipeline_depth, topology.kv_cache.block_size
    rows = topology.scheduler.max_num_seqs
    new_rows = [
        NewRow(2**31 - 1, LARGE, "r" * 128, 2**31 - 1, LARGE, LARGE, bytes(4 * n),
               bytes(4 * blocks_for(n + depth, block_size)), sampling_with(num_entries), LARGE, True, "f" * 32)
        for n, num_entries in itertools.zip_longest(lengths, entries, fillvalue=0)
    ]  # fmt: skip
    plan = StepPlan(
        LARGE, LARGE, LARGE, new_rows, bytes(4 * rows), bytes(4 * rows), bytes(8 * rows), bytes(4 * rows),
        bytes(4 * rows), bytes(rows), bytes(4 * num_appended), bytes(4 * num_appended), is_fresh=True,
        num_drafts=bytes(4 * rows), draft_ids=bytes(4 * num_drafts), draft_ends=bytes(4 * rows),
    )  # fmt: skip
    return len(msgspec.msgpack.encode(plan))


@pytest.mark.parametrize(
    ("max_num_seqs", "budget", "max_model_len"),
    [(64, 2048, 8192), (1, 1, 1), (256, 512, 100_000), (2, 16_384, 100_000)],
)
def test_the_largest_plan_fits(max_num_seqs, budget, max_model_len):
    topology = topology_with(max_num_seqs, budget)
    call, _ = plan_boards(topology, max_model_len, epoch=3)
    tokens = max_plan_tokens(topology, max_model_len)
    lengths = [tokens // max_num_seqs] * max_num_seqs
    lengths[0] += tokens - sum(lengths)
    num_bytes = encoded_bytes(topology, lengths, num_drafts=budget - max_num_seqs)
    assert num_bytes <= call.slot_bytes
    # The bound is not wasteful: the largest plan fills most of the slot.
    assert max_num_seqs == 1 or num_bytes > 0.8 * call.slot_bytes


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_plan_within_the_limits_fits(data):
    topology = topology_with(
        data.draw(st.integers(1, 40)), data.draw(st.integers(40, 500)),
        data.draw(st.sampled_from([8, 16, 256])), data.draw(st.integers(1, 3)),
    )  # fmt: skip
    max_model_len = data.draw(st.integers(1, 5000))
    left, lengths, entries = max_plan_tokens(topology, max_model_len), [], []
    for _ in range(data.draw(st.integers(0, topology.scheduler.max_num_seqs))):
        most = min(left // TOKENS_PER_SAMPLING_ENTRY, MAX_SAMPLING_ENTRIES)
        entries.append(data.draw(st.sampled_from([0, most // 7, most])))
        left -= TOKENS_PER_SAMPLING_ENTRY * entries[-1]
        lengths.append(data.draw(st.integers(0, min(left, max_model_len))))
        left -= lengths[-1]
    call, _ = plan_boards(topology, max_model_len, epoch=0)
    assert encoded_bytes(topology, lengths, entries=entries) <= call.slot_bytes


token_ids = st.integers(0, 2**31 - 1)


@settings(deadline=None)
@given(
    logit_bias=st.lists(st.tuples(token_ids, st.floats(-100, 100)), max_size=9),
    bad_token_ids=st.lists(st.lists(token_ids, min_size=1, max_size=4), max_size=9),
    ids=st.lists(st.lists(token_ids, max_size=300), min_size=2, max_size=2),
)
def test_an_entry_of_any_kind_takes_no_more_than_its_share(logit_bias, bad_token_ids, ids):
    """Beside a constant for the headers of the lists, which `sampling_with` has without entries."""
    lists = {
        "logit_bias": tuple(logit_bias),
        "bad_token_ids": tuple(map(tuple, bad_token_ids)),
        "allowed_token_ids": tuple(ids[0]),
        "stop_token_ids": tuple(ids[1]),
    }
    sampling = msgspec.structs.replace(sampling_with(), **lists)
    num_bytes = len(msgspec.msgpack.encode(sampling)) - len(msgspec.msgpack.encode(sampling_with()))
    headers = 4 * len(lists)  # an array of up to 15 entries has a header of 1 byte, a longer one of up to 5
    assert num_bytes <= 4 * TOKENS_PER_SAMPLING_ENTRY * sampling.num_entries + headers


@given(
    shares=st.lists(st.integers(1, 200), min_size=1, max_size=40),
    block_size=st.sampled_from([8, 16, 256]),
    depth=st.integers(1, 3),
)
@settings(max_examples=50, deadline=None)
def test_the_plan_that_only_appends_blocks_fits(shares, block_size, depth):
    """Each row computes its share of the budget, and needs blocks for it and for the steps in flight."""
    topology = topology_with(len(shares), sum(shares), block_size, depth)
    num_appended = sum(blocks_for(block_size - 1 + share + depth, block_size) for share in shares)
    assert num_appended <= max_plan_blocks(topology, 1)
    call, _ = plan_boards(topology, 1, epoch=0)
    # What a row computes beyond one token may be drafts.
    assert encoded_bytes(topology, [], num_appended, num_drafts=sum(shares) - len(shares)) <= call.slot_bytes


def test_the_largest_result_fits():
    topology = topology_with(64)
    _, result = plan_boards(topology, 8192, epoch=3)
    num_tokens = topology.scheduler.max_num_batched_tokens
    of_prompts = PromptLogprobs(
        bytes(8 * 64), bytes(4 * 64), bytes(4 * 64), bytes(4 * num_tokens), bytes(4 * num_tokens),
        bytes(4 * 20 * num_tokens), bytes(4 * 20 * num_tokens),
    )  # fmt: skip
    largest = StepResult(
        LARGE, LARGE, bytes(8 * 64), bytes(4 * 64), bytes(4 * 64), LARGE, LARGE,
        bytes(4 * 64), bytes(4 * 64), bytes(4 * 64 * 20), bytes(4 * 64 * 20), LARGE, prompt_logprobs=of_prompts,
    )  # fmt: skip
    num_bytes = len(msgspec.msgpack.encode(largest))
    assert 0.8 * result.slot_bytes < num_bytes <= result.slot_bytes


@pytest.mark.parametrize("rows", [1, 64])
def test_the_largest_result_of_drafts_fits(rows):
    """All that a step computes are drafts, each is accepted, and each token comes with its log-probabilities."""
    topology = topology_with(rows)
    _, result = plan_boards(topology, 8192, epoch=3)
    num_tokens = topology.scheduler.max_num_batched_tokens
    largest = StepResult(
        LARGE, LARGE, bytes(8 * rows), bytes(4 * rows), bytes(4 * num_tokens), LARGE, LARGE,
        bytes(4 * num_tokens), bytes(4 * num_tokens), bytes(4 * num_tokens * 20), bytes(4 * num_tokens * 20), LARGE,
        num_sampled=bytes(4 * rows),
        num_drafted=bytes(4 * rows),
    )  # fmt: skip
    assert len(msgspec.msgpack.encode(largest)) <= result.slot_bytes


def test_the_longest_error_fits_into_the_smallest_result_slot():
    _, result = plan_boards(topology_with(max_num_seqs=1), 1, epoch=3)
    error = "\N{FACE WITH TEARS OF JOY}" * MAX_ERROR_CHARS
    failed = StepResult(LARGE, LARGE, b"", b"", b"", LARGE, LARGE, b"", b"", b"", b"", LARGE, StepOutcome.FAILED, error)
    assert len(msgspec.msgpack.encode(failed)) <= result.slot_bytes


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_geometry(depth):
    call, result = plan_boards(topology_with(pipeline_depth=depth), 8192, epoch=5)
    assert (call.name, call.epoch, call.num_slots, call.num_readers) == ("call", 5, depth + 2, 1)
    assert (result.name, result.epoch, result.num_slots, result.num_readers) == ("result", 5, depth + 2, 1)


def test_the_worker_may_be_a_guest():
    topology = load_topology(Path(__file__).parents[2] / "examples" / "one_process.toml")
    assert plan_boards(topology, 100, 0)[0].num_readers == 1


def test_a_request_of_full_length_with_full_lists_always_fits_into_a_plan():
    # 4,096 entries of 4 tokens each beside the tokens of the request.
    assert max_plan_tokens(topology_with(max_num_batched_tokens=64), 8192) == 8192 + 16384
    assert max_plan_tokens(topology_with(max_num_batched_tokens=16384), 8192) == 65536
    topology = topology_with(1, 1)
    call, _ = plan_boards(topology, 100, epoch=0)
    assert encoded_bytes(topology, [100], entries=[MAX_SAMPLING_ENTRIES]) <= call.slot_bytes
