"""Shares of ranks: everything is somewhere, once; each query head meets its KV head; all ranks have one shape."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.checkpoints.model_weights import model_weights
from callboard.checkpoints.shape import ModelShape
from callboard.checkpoints.shape_checks import check_shape
from callboard.checkpoints.sharding import Sharding, obstacle, share_out

SMOLLM2 = ModelShape(
    architecture="llama",
    num_layers=30,
    hidden_size=576,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    intermediate_size=1536,
    vocab_size=49152,
    max_position=8192,
    rope_theta=100_000.0,
    rms_norm_eps=1e-5,
    tie_word_embeddings=True,
    bos_token_id=1,
    eos_token_ids=(2,),
    num_parameters=134_515_008,
    has_qkv_bias=True,
    has_output_bias=True,
    has_mlp_bias=True,
)


def shape_of(groups: int, per_group: int, units: int = 96, tokens: int = 160) -> ModelShape:
    return msgspec.structs.replace(
        SMOLLM2,
        num_heads=groups * per_group,
        num_kv_heads=groups,
        intermediate_size=units,
        vocab_size=tokens,
        num_layers=1,
    )


@pytest.mark.parametrize(
    ("groups", "per_group", "size", "local"),
    [
        (3, 3, 3, (3, 1)),  # SmolLM2-135M, a group a rank
        (3, 3, 2, (6, 2)),  # the second rank has a group of zeros
        (3, 3, 9, (1, 1)),  # each KV head on three ranks
        (3, 3, 4, (3, 1)),  # two ranks share one group, the others have one each
        (2, 4, 4, (2, 1)),
        (4, 2, 4, (2, 1)),
        (8, 8, 8, (8, 1)),  # Llama-3-70B
        (8, 8, 16, (4, 1)),
        (1, 4, 3, (2, 1)),
        (5, 1, 4, (2, 2)),
    ],
)
def test_heads_of_a_rank(groups: int, per_group: int, size: int, local: tuple[int, int]) -> None:
    shape = Sharding(shape_of(groups, per_group), size).local_shape
    assert (shape.num_heads, shape.num_kv_heads) == local


def test_what_the_reference_case_pads() -> None:
    """SmolLM2-135M: 3 groups over 2 ranks are 4, its 1,536 units and 49,152 tokens divide."""
    sharding = Sharding(SMOLLM2, 2)
    assert (sharding.num_heads, sharding.num_kv_heads, sharding.intermediate_size) == (12, 4, 1536)
    assert [sharding.kv_heads(rank) for rank in range(2)] == [(0, 2, 2), (2, 3, 2)]
    assert sharding.local_shape.vocab_size == 24_576


@given(groups=st.integers(1, 9), per_group=st.integers(1, 9), data=st.data())
def test_each_query_head_is_on_one_rank_beside_its_kv_head(groups: int, per_group: int, data: st.DataObject) -> None:
    shape = shape_of(groups, per_group)
    size = data.draw(st.integers(1, shape.num_heads))
    sharding = Sharding(shape, size)
    local = sharding.local_shape
    check_shape(local, "local")
    ranks = Counter[int]()
    for rank in range(size):
        queries, keys = sharding.query_heads(rank), sharding.kv_heads(rank)
        assert 1 <= queries.num_real <= queries.size == local.num_heads
        assert 1 <= keys.num_real <= keys.size == local.num_kv_heads
        for index, head in enumerate(range(queries.first, queries.last)):
            ranks[head] += 1
            meets = keys.first + index // (local.num_heads // local.num_kv_heads)
            assert meets == head // per_group < keys.last
    assert ranks == Counter(range(shape.num_heads))


@given(total=st.integers(1, 300), num_parts=st.integers(1, 20), unit=st.sampled_from([1, 8]))
def test_parts_are_even_and_in_order(total: int, num_parts: int, unit: int) -> None:
    if num_parts > total:
        return
    shares = share_out(total, num_parts, unit)
    assert [element for share in shares for element in range(share.first, share.last)] == list(range(total))
    lengths = [share.num_real for share in shares]
    assert min(lengths) > 0
    assert max(lengths) - min(lengths) <= unit
    assert {share.size for share in shares} == {max(lengths)}


@pytest.mark.parametrize("size", [2, 3, 4, 9])
def test_shares_of_tensors_are_those_of_the_local_shape(size: int) -> None:
    sharding = Sharding(SMOLLM2, size)
    local = {name: lengths for (_, name), lengths in model_weights(sharding.local_shape).items()}
    for (_, name), lengths in model_weights(SMOLLM2).items():
        of_ranks = [sharding.of_tensor(rank, name, lengths) for rank in range(size)]
        assert {tuple(share.size for share in shares) for shares in of_ranks} == {local[name]}
        real = [[share.num_real for share in shares] for shares in of_ranks]
        if name.endswith("norm.weight"):
            assert all(tuple(each) == lengths for each in real)
        elif name.endswith(("o_proj.bias", "down_proj.bias")):
            assert real == [[576], *[[0]] * (size - 1)]


def test_more_ranks_than_heads() -> None:
    assert obstacle(SMOLLM2, 9) is None
    assert obstacle(SMOLLM2, 10) == "10 ranks cannot share 9 heads"
    with pytest.raises(ValueError, match="10 ranks cannot share 9 heads"):
        Sharding(SMOLLM2, 10)
