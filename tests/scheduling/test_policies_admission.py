"""What must be free for a request to be admitted: worked numbers, bounds that hold for all, and the estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.scheduling import chunk, estimate, whole_prompt
from callboard.scheduling.policy_views import AdmissionView, BlocksWanted, Estimate, RunningCounts
from callboard.scheduling.request import Request, RequestState
from callboard.tests.scheduling.fake_request import fake_request, held, snapshot


def lists(counts: RunningCounts) -> list[list[int]]:
    return [array.tolist() for array in counts]


POLICIES: dict[str, BlocksWanted] = {
    "chunk": chunk.blocks_wanted,
    "whole_prompt": whole_prompt.blocks_wanted,
    "estimate": estimate.blocks_wanted,
}


def view_of(*running: Request, share_ppm: int = 0, num_blocks: int = 1000, block_size: int = 16) -> AdmissionView:
    counts = counts_of(running)
    return AdmissionView(block_size, num_blocks, lambda: counts, Estimate(share_ppm))


def counts_of(running: Sequence[Request]) -> RunningCounts:
    counts = [(request.num_tokens, len(request.block_ids), request.max_total_tokens) for request in running]
    return RunningCounts(*np.array(counts, np.int64).reshape(-1, 3).T)


def newcomer(num_prompt: int, max_output: int, state: RequestState = RequestState.WAITING) -> Request:
    return fake_request(0, num_prompt_tokens=num_prompt, max_total_tokens=num_prompt + max_output, state=state)


def runner(order: int, num_prompt: int, num_output: int, max_output: int, num_blocks: int) -> Request:
    return fake_request(
        order,
        state=RequestState.RUNNING,
        num_prompt_tokens=num_prompt,
        num_output_tokens=num_output,
        max_total_tokens=num_prompt + max_output,
        block_ids=held(num_blocks),
    )


# Chunk and whole prompt -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_cached", "num_first", "by_chunk", "by_prompt"),
    [(0, 512, 32, 129), (0, 2050, 129, 129), (2000, 50, 4, 4), (2048, 2, 1, 1), (1024, 512, 32, 65)],
)
def test_a_prompt_of_2050_tokens_wants(num_cached: int, num_first: int, by_chunk: int, by_prompt: int) -> None:
    """129 blocks in all (2,051 tokens are 129 as well), without the 125, 128 or 64 that are cached."""
    request = newcomer(2050, 300)
    assert chunk.blocks_wanted(request, num_cached, num_first, view_of()) == by_chunk
    assert whole_prompt.blocks_wanted(request, num_cached, num_first, view_of()) == by_prompt


def test_the_next_token_has_a_place() -> None:
    """16 tokens are one block; the 17th, which the first step yields, is the second block's."""
    assert whole_prompt.blocks_wanted(newcomer(15, 9), 0, 15, view_of()) == 1
    assert whole_prompt.blocks_wanted(newcomer(16, 9), 0, 16, view_of()) == 2


def test_a_preempted_request_waits_for_all_its_blocks() -> None:
    """Its first chunk would be 1 block of 10."""
    back = newcomer(150, 9, RequestState.PREEMPTED)
    assert chunk.blocks_wanted(back, 0, 16, view_of()) == 10
    assert chunk.blocks_wanted(back, 64, 16, view_of()) == 6
    assert chunk.blocks_wanted(newcomer(150, 9), 0, 16, view_of()) == 1


def test_a_whole_prompt_leaves_the_rest_of_the_prompts_that_run_its_room() -> None:
    """Two prompts of 60 blocks in a pool of 100: of the first 2 are computed, so 98 are free, and the second does not
    begin, for it could not be finished. By chunk it begins. A row that writes lacks nothing."""
    half_way, writes = runner(1, 960, 0, 9, 2), runner(2, 100, 28, 99, 8)
    view = view_of(half_way, writes, num_blocks=100)
    assert whole_prompt.blocks_wanted(newcomer(950, 9), 0, 32, view) == 100
    assert whole_prompt.blocks_wanted(newcomer(159, 9), 0, 32, view) == 58 + 10
    assert whole_prompt.blocks_wanted(newcomer(950, 9), 0, 32, view_of(writes, num_blocks=100)) == 60
    assert chunk.blocks_wanted(newcomer(950, 9), 0, 32, view) == 2


# The estimate ---------------------------------------------------------------------------------------------------------


def test_the_share_decays_from_70_to_10_percent_in_600_steps() -> None:
    now = estimate.START
    assert now.share_ppm == 700_000
    for step in range(1, 601):
        now = estimate.decayed(now)
        assert now.share_ppm == 700_000 - 1000 * step
    assert estimate.decayed(now) == now == Estimate(100_000)


def test_output_that_is_likely_to_be_written_is_reckoned_with() -> None:
    """The running one has 100 of 400 tokens of output, 200 tokens in 13 blocks: at 50 % it will have 350, 22 blocks, so
    it lacks 9. The new one, of 100 and up to 300, will have 250: 16 blocks. At 0 % the first lacks none (201 tokens are
    13 blocks) and the new one wants 7."""
    running = runner(1, 100, 100, 400, 13)
    assert estimate.blocks_wanted(newcomer(100, 300), 0, 100, view_of(running, share_ppm=500_000)) == 9 + 16
    assert estimate.blocks_wanted(newcomer(100, 300), 0, 100, view_of(running, share_ppm=0)) == 7
    assert estimate.blocks_wanted(newcomer(100, 300), 96, 4, view_of(running, share_ppm=500_000)) == 9 + 10


def test_a_prompt_that_runs_in_chunks_lacks_the_rest_of_its_blocks() -> None:
    """1,000 tokens are 63 blocks, of which it has 4 so far."""
    running = runner(1, 1000, 0, 1, 4)
    assert estimate.blocks_wanted(newcomer(15, 1), 0, 15, view_of(running)) == 59 + 1


def test_no_more_than_4096_tokens_of_output_are_reckoned_with() -> None:
    """Half of 4,096 and not of 100,000."""
    wanted = estimate.blocks_wanted(newcomer(100, 100_000), 0, 100, view_of(share_ppm=500_000))
    assert wanted == math.ceil((100 + 2048) / 16)


@pytest.mark.parametrize(("share_ppm", "num_tokens"), [(0, 11), (1, 11), (200_000, 11), (200_001, 12), (1_000_000, 15)])
def test_a_share_is_rounded_up_and_the_next_token_always_counts(share_ppm: int, num_tokens: int) -> None:
    """Of 5 tokens behind a prompt of 10, one token a block."""
    view = view_of(share_ppm=share_ppm, block_size=1)
    assert estimate.blocks_wanted(newcomer(10, 5), 0, 10, view) == num_tokens


def test_after_a_retract_the_share_is_what_was_written_of_what_may_be() -> None:
    """100 and 200 of 400 tokens each, and 20 ahead: 340 of 800."""
    running = [runner(1, 10, 100, 400, 7), runner(2, 10, 200, 400, 14)]
    assert estimate.after_retract(Estimate(100_000), running) == Estimate(425_000)
    assert estimate.after_retract(Estimate(600_000), running) == Estimate(600_000)
    assert estimate.after_retract(Estimate(600_000), []) == Estimate(600_000)


def test_a_limit_that_nobody_reaches_does_not_hide_what_is_written() -> None:
    """1,004 of 100,000 tokens: reckoned with are those and 4,096 more, so 1,024 of 5,100, where 1,024 of 100,000 would
    be under the floor."""
    running = [runner(1, 10, 1004, 100_000, 64)]
    assert estimate.after_retract(Estimate(100_000), running) == Estimate(1_024_000_000 // 5100)


def test_requests_at_their_end_are_a_share_of_one() -> None:
    assert estimate.after_retract(Estimate(100_000), [runner(1, 10, 399, 400, 26)]) == Estimate(1_000_000)


# What holds for all ---------------------------------------------------------------------------------------------------


@st.composite
def admissions(draw: st.DrawFn) -> tuple[Request, int, int, AdmissionView]:
    """A request of any admissible length, some of it cached, over running ones that fit the pool."""
    block_size, num_blocks = draw(st.sampled_from([1, 4, 16])), draw(st.integers(1, 40))
    num_places = block_size * num_blocks
    num_known = draw(st.integers(1, num_places))
    request = newcomer(
        num_known,
        draw(st.integers(1, num_places + 1 - num_known)),
        draw(st.sampled_from([RequestState.WAITING, RequestState.PREEMPTED])),
    )
    num_cached = draw(st.integers(0, (num_known - 1) // block_size)) * block_size
    num_first = draw(st.integers(1, num_known - num_cached))
    running, num_left = [], num_blocks
    for order in range(1, draw(st.integers(0, 4)) + 1):
        num_held = draw(st.integers(0, num_left))
        num_left -= num_held
        num_prompt, num_output = draw(st.integers(1, 30)), draw(st.integers(0, 30))
        running.append(runner(order, num_prompt, num_output, num_output + draw(st.integers(1, 50)), num_held))
    view = view_of(*running, share_ppm=draw(st.integers(0, 1_000_000)), num_blocks=num_blocks, block_size=block_size)
    return request, num_cached, num_first, view


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=40)
@given(admission=admissions())
def test_wanted_is_at_least_the_first_chunk_and_at_most_an_empty_pool(
    name: str, admission: tuple[Request, int, int, AdmissionView]
) -> None:
    request, num_cached, num_first, view = admission
    before, counts = snapshot([request]), lists(view.running())
    wanted = POLICIES[name](*admission)
    num_cached_blocks = num_cached // view.block_size
    assert wanted >= math.ceil((num_cached + num_first) / view.block_size) - num_cached_blocks
    assert wanted <= view.num_blocks - num_cached_blocks, "it would never be admitted"
    assert POLICIES[name](*admission) == wanted
    assert (snapshot([request]), lists(view.running())) == (before, counts)


@settings(max_examples=40)
@given(admission=admissions())
def test_the_estimate_is_that_of_the_exact_sum(admission: tuple[Request, int, int, AdmissionView]) -> None:
    request, num_cached, _num_first, view = admission
    share = Fraction(view.estimate.share_ppm, 1_000_000)

    def blocks(num_tokens: int, max_total: int) -> int:
        rest = min(4096, max_total - num_tokens)
        return math.ceil(Fraction(num_tokens + max(1, math.ceil(share * rest)), view.block_size))

    lacked = [max(0, blocks(tokens, end) - held) for tokens, held, end in zip(*lists(view.running()), strict=True)]
    own = blocks(request.num_tokens, request.max_total_tokens)
    expected = min(view.num_blocks, own + sum(lacked)) - num_cached // view.block_size
    assert estimate.blocks_wanted(*admission) == expected


@settings(max_examples=40)
@given(admission=admissions())
def test_the_whole_prompt_is_that_of_the_exact_sum(admission: tuple[Request, int, int, AdmissionView]) -> None:
    request, num_cached, _num_first, view = admission
    tokens, blocks_held, _ends = lists(view.running())
    lacked = [max(0, math.ceil(n / view.block_size) - m) for n, m in zip(tokens, blocks_held, strict=True)]
    expected = math.ceil((request.num_tokens + 1) / view.block_size) + sum(lacked)
    assert whole_prompt.blocks_wanted(*admission) == min(view.num_blocks, expected) - num_cached // view.block_size


@settings(max_examples=40)
@given(admission=admissions())
def test_a_higher_share_and_a_longer_look_ahead_never_want_less(
    admission: tuple[Request, int, int, AdmissionView],
) -> None:
    request, num_cached, num_first, view = admission
    later = view._replace(estimate=estimate.decayed(Estimate(max(100_000, view.estimate.share_ppm))))
    sooner = view._replace(estimate=Estimate(max(100_000, view.estimate.share_ppm)))
    by_estimate = [estimate.blocks_wanted(request, num_cached, num_first, v) for v in (later, sooner)]
    by_prompt = whole_prompt.blocks_wanted(request, num_cached, num_first, view)
    by_chunk = chunk.blocks_wanted(request, num_cached, num_first, view)
    assert by_chunk <= by_prompt <= by_estimate[0] <= by_estimate[1]
