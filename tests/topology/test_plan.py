"""Names of actors, links, and the memory ledger."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.checkpoints.shape import ModelShape
from callboard.errors import NotEnoughMemory
from callboard.topology import (
    Arithmetic,
    block_bytes_of,
    blocks_for,
    expand_actors,
    mailbox_links,
    max_model_len_of,
    plan_boards,
    plan_memory,
    topology_from,
)
from callboard.topology.schema import ModelSection, ProcessSection, Topology

GOLDEN = {
    name: entry["value"]
    for name, entry in json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text()).items()
}
MIB, GIB = 1 << 20, 1 << 30


def shape_of(num_layers: int, num_kv_heads: int, head_dim: int = 128, num_heads: int = 64) -> ModelShape:
    return ModelShape("llama", num_layers, 8192, num_heads, num_kv_heads, head_dim, 28672, 128256, 8192, 5e5, 1e-5,
                      False, 1, (2,), 70_553_706_496)  # fmt: skip


LLAMA_70B = shape_of(80, 8)
LLAMA_70B_PER_GPU = shape_of(80, 1, num_heads=8)
LLAMA_8B = shape_of(32, 8, num_heads=32)


# Golden numbers


def test_kv_bytes_per_token_llama70b():
    assert LLAMA_70B.kv_bytes_per_token(2) == GOLDEN["kv_bytes_per_token_llama70b"]


def test_kv_bytes_per_token_layer_llama70b():
    assert shape_of(1, 8).kv_bytes_per_token(2) == GOLDEN["kv_bytes_per_token_layer_llama70b"]


def test_kv_bytes_per_token_llama8b():
    assert LLAMA_8B.kv_bytes_per_token(2) == GOLDEN["kv_bytes_per_token_llama8b"]


def test_kv_bytes_8192_tokens_llama8b():
    num_bytes = blocks_for(8192, 16) * block_bytes_of(LLAMA_8B, 16, 2)
    assert num_bytes == GOLDEN["kv_bytes_8192_tokens_llama8b"]


def test_kv_bytes_per_token_mha64():
    assert shape_of(80, 64).kv_bytes_per_token(2) == GOLDEN["kv_bytes_per_token_mha64"]


def test_kv_bytes_per_token_fp8():
    assert LLAMA_70B.kv_bytes_per_token(1) == GOLDEN["kv_bytes_per_token_fp8"]


@pytest.mark.parametrize("num_tokens", [17, 2000, 2005, 2050, 2350, 4096])
def test_blocks_for_tokens_bs16(num_tokens):
    assert blocks_for(num_tokens, 16) == GOLDEN[f"blocks_for_{num_tokens}_tokens_bs16"]


def test_block_bytes_per_gpu_tp8():
    assert block_bytes_of(LLAMA_70B_PER_GPU, 16, 2) == GOLDEN["block_bytes_per_gpu_tp8"]


def test_request_bytes_2350_tokens():
    assert 2350 * LLAMA_70B.kv_bytes_per_token(2) == GOLDEN["request_bytes_2350_tokens"]
    # In whole blocks: 735 MiB (rules.md 3).
    assert blocks_for(2350, 16) * block_bytes_of(LLAMA_70B, 16, 2) == 735 * MIB


def test_kv_per_gpu_4096_tp8():
    num_bytes = blocks_for(4096, 16) * block_bytes_of(LLAMA_70B_PER_GPU, 16, 2)
    assert num_bytes == GOLDEN["kv_per_gpu_4096_tp8"]


@given(num_tokens=st.integers(0, 10**7), block_size=st.integers(1, 256))
def test_blocks_hold_the_tokens_and_one_less_does_not(num_tokens, block_size):
    num_blocks = blocks_for(num_tokens, block_size)
    assert num_blocks * block_size >= num_tokens
    assert num_blocks == 0 or (num_blocks - 1) * block_size < num_tokens


# Actors


def topology_of(*processes: tuple[str, ...]) -> Topology:
    sections = tuple(ProcessSection(name=f"p{i}", actors=actors) for i, actors in enumerate(processes))
    return Topology(model=ModelSection(source="m"), process=sections)


def test_a_single_actor_is_called_by_its_kind():
    assert expand_actors(topology_from("m")) == {
        "control": ("frontend", "tokenizer", "scheduler", "grammar"),
        "worker": ("worker",),
    }


def test_several_actors_of_a_kind_are_numbered_through_all_processes():
    topology = topology_of(("frontend*2", "tokenizer"), ("tokenizer", "scheduler*1"), ("frontend", "worker"))
    assert expand_actors(topology) == {
        "p0": ("frontend.0", "frontend.1", "tokenizer.0"),
        "p1": ("tokenizer.1", "scheduler"),
        "p2": ("frontend.2", "worker"),
    }


def test_the_same_kind_twice_in_one_process():
    assert expand_actors(topology_of(("frontend", "frontend*2"))) == {"p0": ("frontend.0", "frontend.1", "frontend.2")}


def test_links_join_each_frontend_and_tokenizer_and_the_scheduler_both_ways():
    topology = topology_of(("frontend*2",), ("tokenizer", "scheduler"), ("worker",))
    links = {(link.sender, link.receiver): link.is_local for link in mailbox_links(topology)}
    assert links == {
        ("frontend.0", "tokenizer"): False,
        ("tokenizer", "frontend.0"): False,
        ("frontend.1", "tokenizer"): False,
        ("tokenizer", "frontend.1"): False,
        ("tokenizer", "scheduler"): True,
        ("scheduler", "tokenizer"): True,
    }


# Memory


def with_kv(topology: Topology, **fields: object) -> Topology:
    return msgspec.structs.replace(topology, kv_cache=msgspec.structs.replace(topology.kv_cache, **fields))


FLOAT32 = Arithmetic(4, 4, 4, 4, reads_kv_in_place=True)


def plan(topology, shape, available_bytes):
    return plan_memory(topology, shape, available_bytes, FLOAT32)


def fixed(ledger):
    """All but the KV pool."""
    return ledger.used_bytes - ledger.kv_bytes


def test_max_model_len_is_the_topologys_or_the_models(smollm2):
    assert max_model_len_of(topology_from("m"), smollm2) == 8192
    assert max_model_len_of(topology_from("m", ["model.max_model_len=100"]), smollm2) == 100


def test_by_default_a_quarter_of_what_is_free(smollm2):
    ledger = plan(topology_from("m"), smollm2, 8 * GIB)
    assert ledger.weight_bytes == 4 * (134_515_008 + 49152 * 576 + 8192 * 2 * 64)
    assert ledger.block_bytes == 16 * 2 * 30 * 3 * 64 * 4
    free = 8 * GIB - fixed(ledger)
    assert free / 4 - ledger.block_bytes < ledger.kv_bytes <= free / 4
    assert ledger.kv_bytes == ledger.num_blocks * ledger.block_bytes
    assert ledger.max_full_length_requests == ledger.num_blocks // 512


def test_activations_hold_at_least_the_logits_and_the_hidden_states_of_the_largest_step(smollm2):
    ledger = plan(topology_from("m"), smollm2, 8 * GIB)
    assert ledger.activation_bytes >= 4 * (64 * 49152 + 2048 * (576 + 2 * 1536))


def test_boards_are_their_slots_and_graphs_need_a_gpu(smollm2):
    topology = topology_from("m")
    ledger = plan(topology, smollm2, 8 * GIB)
    boards = plan_boards(topology, 8192, epoch=1)
    assert ledger.board_bytes == sum(4 * board.slot_bytes for board in boards)
    assert ledger.graph_bytes == 0


def test_each_further_process_costs_an_interpreter_and_each_actor_something(smollm2):
    one = plan(topology_of(("frontend", "tokenizer", "scheduler", "worker")), smollm2, 8 * GIB)
    two = plan(topology_of(("frontend", "tokenizer", "scheduler"), ("worker",)), smollm2, 8 * GIB)
    more = plan(topology_of(("frontend*2", "tokenizer", "scheduler"), ("worker",)), smollm2, 8 * GIB)
    assert 15 * MIB < two.runtime_bytes - one.runtime_bytes < 30 * MIB
    assert 5 * MIB < more.runtime_bytes - two.runtime_bytes < 20 * MIB


def test_by_default_no_more_than_the_largest_batch_can_use(smollm2):
    topology = topology_from("m", ["scheduler.max_num_seqs=4", "model.max_model_len=1000"])
    assert plan(topology, smollm2, 64 * GIB).num_blocks == 4 * 63


def test_by_default_one_full_request_fits_if_it_can(smollm2):
    """With 400 MiB free a quarter holds 142 blocks; the default takes the 512 that a request of 8,192 tokens needs. One
    row: what is counted of the tokens of several depends on how many the pool can hold."""
    topology = topology_from("m", ["scheduler.max_num_seqs=1"])
    used = plan(topology, smollm2, 8 * GIB)
    assert plan(topology, smollm2, fixed(used) + 400 * MIB).num_blocks == 512
    with pytest.raises(NotEnoughMemory, match=r"lower \[model\] max_model_len to 7,280 or less"):
        # 320 MiB hold 455 blocks of 720 KiB.
        plan(topology, smollm2, fixed(used) + 320 * MIB - 1)


def test_an_explicit_share_is_not_capped(smollm2):
    topology = topology_from("m", ["scheduler.max_num_seqs=1", "model.max_model_len=16", "kv_cache.memory_share=0.5"])
    ledger = plan(topology, smollm2, 8 * GIB)
    free = 8 * GIB - fixed(ledger)
    assert free / 2 - ledger.block_bytes <= ledger.kv_bytes <= free / 2


def test_num_blocks_and_memory_bytes_are_taken_at_their_word(smollm2):
    assert plan(with_kv(topology_from("m"), num_blocks=700), smollm2, 8 * GIB).num_blocks == 700
    ledger = plan(with_kv(topology_from("m"), memory_bytes=GIB), smollm2, 8 * GIB)
    assert ledger.num_blocks == 1456  # 1 GiB / 720 KiB
    assert ledger.kv_bytes <= GIB


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"num_blocks": 100_000}, ["does not fit", "100,000 blocks of 720.0 KiB", "lower [kv_cache] num_blocks to"]),
        ({"memory_bytes": 100 * GIB}, ["does not fit", "100.0 GiB", "lower [kv_cache] memory_bytes to"]),
        ({"num_blocks": 511}, ["holds 8,176 tokens", "512 blocks", "max_model_len to 8,176 or less"]),
        ({"memory_share": 0.01}, ["max_model_len 8,192 needs", "360.0 MiB", "lower [model] max_model_len to"]),
        ({"memory_bytes": 1}, ["holds 0 tokens", "raise [kv_cache]"]),
    ],
)
def test_what_does_not_fit_says_numbers_and_advice(smollm2, fields, says):
    with pytest.raises(NotEnoughMemory) as caught:
        plan(with_kv(topology_from("m"), **fields), smollm2, 8 * GIB)
    message = str(caught.value)
    for part in (*says, "weights 625.1 MiB", "activations", "available 8.0 GiB"):
        assert part in message


def test_a_model_that_does_not_fit_at_all(smollm2):
    with pytest.raises(NotEnoughMemory, match=r"the model does not fit: weights 625\.1 MiB .* available 512\.0 MiB"):
        plan(topology_from("m"), smollm2, 512 * MIB)


@settings(max_examples=60)
@given(
    available=st.integers(0, 64 * GIB),
    max_model_len=st.integers(1, 8192),
    max_num_seqs=st.integers(1, 256),
    kv=st.one_of(
        st.just({}),
        st.builds(lambda n: {"num_blocks": n}, st.integers(1, 10**6)),
        st.builds(lambda n: {"memory_bytes": n}, st.integers(1, 10**11)),
        st.builds(lambda x: {"memory_share": x}, st.floats(0.001, 0.999)),
    ),
)
def test_a_ledger_adds_up_or_says_why_not(available, max_model_len, max_num_seqs, kv):
    topology = topology_from("m", [f"model.max_model_len={max_model_len}", f"scheduler.max_num_seqs={max_num_seqs}"])
    shape = ModelShape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, True, 1, (2,), 134_515_008)
    try:
        ledger = plan(with_kv(topology, **kv), shape, available)
    except NotEnoughMemory as error:
        assert error.advice
        return
    assert ledger.used_bytes <= available
    parts = ("weight_bytes", "activation_bytes", "kv_bytes", "graph_bytes", "board_bytes", "runtime_bytes")
    assert ledger.used_bytes == sum(getattr(ledger, part) for part in parts)
    assert ledger.num_blocks * 16 >= max_model_len
    assert ledger.max_full_length_requests >= 1
