"""A worker of several ranks: its processes, its boards, what the ledger says of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from callboard.checkpoints.shape import ModelShape
from callboard.checkpoints.stages import stage_of
from callboard.errors import ConfigError
from callboard.topology import (
    Arithmetic,
    check_topology,
    ensure_valid,
    expand_actors,
    plan_boards,
    plan_memory,
    rank_region_layout,
    render_ledger,
    stage_boards,
    topology_from,
)
from callboard.topology.boards import stage_boards_of
from callboard.topology.plan import num_threads_of, output_rank_of, processes_of, rank_of, section_of

FLOAT32 = Arithmetic(4, 4, 4, 4, is_head_copied=False)
GIB = 1 << 30
LENGTH = 2048
SMOLLM2 = ModelShape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, 1e5, 1e-5, True, 1, (2,), 134_515_008)


def topology(size: int, *overrides: str):
    return topology_from("m", [f"process.worker.tensor_parallel={size}", *overrides])


def test_a_rank_is_a_process_with_an_actor_of_its_number():
    several = topology(3)
    actors = expand_actors(several)
    assert list(actors) == ["control", "worker.0", "worker.1", "worker.2"]
    assert [actors[f"worker.{rank}"] for rank in range(3)] == [("worker.0",), ("worker.1",), ("worker.2",)]
    assert section_of(several, "worker.2") is several.process[1]
    assert processes_of(several.process[0]) == ("control",)
    assert [rank_of(actor) for actor in ("worker", "worker.2")] == [0, 2]
    assert expand_actors(topology(1))["worker"] == ("worker",)


def test_cores_are_shared_out_to_ranks():
    section = topology(3).process[1]
    assert [num_threads_of(section, num_cores) for num_cores in (2, 8, 96)] == [1, 2, 32]
    assert num_threads_of(topology(3, "process.worker.threads=5").process[1], 8) == 5


def test_the_call_board_has_a_reader_a_rank_and_the_result_board_one():
    call, result = plan_boards(topology(3), LENGTH, epoch=1)
    assert (call.num_readers, result.num_readers) == (3, 1)
    layout = rank_region_layout(topology(3), SMOLLM2)
    assert layout.num_ranks == 3
    assert layout.slot_bytes % 4096 == 0


def ledger_of(size: int, *overrides: str):
    settings = ("kv_cache.num_blocks=300", f"model.max_model_len={LENGTH}", *overrides)
    return plan_memory(topology(size, *settings), SMOLLM2, 64 * GIB, FLOAT32)


def test_what_filling_up_costs_on_two_ranks():
    """3 groups become 4: of each layer 3 query heads in q and o, a KV head in k and v; norms and tables lie twice."""
    one, two = ledger_of(1), ledger_of(2)
    zeros = 30 * 64 * 576 * 4 * (2 * 3 + 2 * 1)
    twice = 4 * (576 * (2 * 30 + 1) + 2 * LENGTH * 64)
    assert two.weight_bytes == one.weight_bytes + zeros + twice
    assert (one.block_bytes, two.block_bytes) == (16 * 2 * 30 * 3 * 64 * 4, 16 * 2 * 30 * 4 * 64 * 4)
    assert two.surplus_bytes == zeros + twice + 300 * (two.block_bytes - one.block_bytes)
    assert one.surplus_bytes == 0


def test_three_ranks_share_the_reference_model_without_a_zero():
    one, three = ledger_of(1), ledger_of(3)
    assert three.block_bytes == one.block_bytes
    assert three.surplus_bytes == three.weight_bytes - one.weight_bytes == 2 * 4 * (576 * 61 + 2 * LENGTH * 64)
    assert three.runtime_bytes > one.runtime_bytes  # an interpreter and a torch a rank
    assert "held by several of the 3 ranks" in render_ledger(topology(3), three)
    assert "ranks" not in render_ledger(topology(1), one)


def test_boards_between_stages():
    """Three stages of two ranks: hidden states from each of the first four, tokens from rank 4 to ranks 0 and 1."""
    staged = topology(2, "process.worker.pipeline_parallel=3", "scheduler.pipeline_depth=3")
    section = staged.process[1]
    boards = stage_boards(staged, SMOLLM2)
    assert [board.name for board in boards] == ["hidden.0", "hidden.1", "hidden.2", "hidden.3", "tokens"]
    assert boards[0].slot_bytes >= 2048 * 576 * 4
    assert output_rank_of(section) == 4
    seen = []
    for rank in range(6):
        own = stage_boards_of(boards, section, rank)
        ends = (own.hidden_in, own.hidden_out, own.tokens_in, own.tokens_out)
        seen.append([None if board is None else board.name for board in ends])
    assert seen == [
        [None, "hidden.0", "tokens", None],
        [None, "hidden.1", "tokens", None],
        ["hidden.0", "hidden.2", None, None],
        ["hidden.1", "hidden.3", None, None],
        ["hidden.2", None, None, "tokens"],
        ["hidden.3", None, None, None],
    ]
    assert stage_boards(topology(2), SMOLLM2) == ()
    assert rank_region_layout(staged, SMOLLM2).num_ranks == 2


def test_layers_and_transfers_of_the_reference_case():
    """80 layers over 8 stages."""
    stages = [stage_of(80, number, 8) for number in range(8)]
    golden = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())["pp8"]["value"]
    assert {stage.last - stage.first for stage in stages} == {golden["layers_per_stage"]}
    assert sum(not stage.is_last for stage in stages) == golden["p2p_per_step"]


def test_stages_hold_what_one_does_and_a_table_each():
    one = ledger_of(1)
    two = ledger_of(1, "process.worker.pipeline_parallel=2")
    assert two.weight_bytes == one.weight_bytes + 4 * 2 * LENGTH * 64
    assert two.block_bytes == one.block_bytes
    assert two.surplus_bytes == two.weight_bytes - one.weight_bytes


def test_what_is_filled_up_is_a_warning_with_numbers():
    (problem,) = check_topology(topology(2), SMOLLM2)
    assert problem.is_warning
    assert "1, 3, which share out 9 heads and 3 KV heads; with 2, 9 heads become 12, 3 KV heads become 4" in str(
        problem.sentence()
    )
    ensure_valid(topology(2), SMOLLM2)
    assert check_topology(topology(3), SMOLLM2) == []


def test_kv_heads_that_several_ranks_hold_are_no_zeros():
    wide = msgspec.structs.replace(SMOLLM2, num_heads=8, num_kv_heads=2, hidden_size=512)
    assert check_topology(topology(4), wide) == []


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["process.worker.tensor_parallel=10"], "10 ranks cannot share 9 heads"),
        (["process.worker.tensor_parallel=3", "model.dtype=int8"], 'dtype = "int8", which is computed by one rank'),
        (["process.worker.tensor_parallel=3", "process.worker.device=null"], "1 on the null device"),
        (["process.worker.pipeline_parallel=3"], "at most pipeline_depth = 2"),
        (["process.worker.pipeline_parallel=2", "speculative.method=ngram"], r"1 beside \[speculative\]"),
        (["process.worker.pipeline_parallel=2", "model.dtype=int4"], 'dtype = "int4"'),
        (["process.control.tensor_parallel=2"], "only in the worker's process"),
    ],
)
def test_what_cannot_be_shared(overrides: list[str], says: str):
    with pytest.raises(ConfigError, match=says):
        ensure_valid(topology_from("m", overrides), SMOLLM2)
