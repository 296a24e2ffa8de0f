"""The load shapes of the comparison with other engines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.bench.peers.points import POINTS, Point

SHAPES = {  # requests at once, requests, tokens in, tokens out, shared tokens
    "c1": (1, 6, 128, 128, 0),
    "c4": (4, 16, 128, 128, 0),
    "c16": (16, 32, 128, 128, 0),
    "c32": (32, 64, 128, 128, 0),
    "shared": (8, 32, 544, 32, 512),
    "long": (1, 3, 2000, 16, 0),
}


def test_the_shapes_are_those_that_the_figures_of_the_peers_are_for() -> None:
    assert {
        p.name: (p.concurrency, p.num_requests, p.input_len, p.output_len, p.shared_prefix_len) for p in POINTS
    } == SHAPES


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    shared = next(point for point in POINTS if point.name == "shared")
    prompts = shared.prompts(49_152, 0)
    assert len(prompts) == 32 and {len(prompt) for prompt in prompts} == {544}
    assert len({tuple(prompt[:512]) for prompt in prompts}) == 1
    assert len({tuple(prompt[512:528]) for prompt in prompts}) == 32


def test_no_block_of_a_run_comes_back_in_another() -> None:
    """A cache of blocks of 16 tokens has no use for what earlier rounds, points and warm-ups left in it."""
    heads = []
    for point in POINTS:
        for round_index in range(3):
            prompts = point.prompts(49_152, round_index)
            heads += [tuple(prompts[0][:16])] if point.shared_prefix_len else [tuple(p[:16]) for p in prompts]
            heads += [tuple(prompt[:16]) for prompt in point.warm_up_prompts(49_152, round_index)]
    assert len(heads) == len(set(heads))


def test_a_round_can_be_run_again() -> None:
    assert POINTS[1].prompts(49_152, 2) == POINTS[1].prompts(49_152, 2)


@given(
    vocab_size=st.integers(8, 300_000),
    num_requests=st.integers(1, 4),
    shared_len=st.integers(0, 20),
    own_len=st.integers(1, 20),
)
def test_ids_are_of_the_vocabulary(vocab_size: int, num_requests: int, shared_len: int, own_len: int) -> None:
    point = Point("p", 1, num_requests, shared_len + own_len, 1, shared_len, num_warm_up=2)
    for prompt in [*point.prompts(vocab_size, 0), *point.warm_up_prompts(vocab_size, 0)]:
        assert len(prompt) == shared_len + own_len
        assert all(0 < token < vocab_size for token in prompt)
