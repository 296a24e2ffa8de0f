"""Reading and scaling traces, and the prompts that are made of them."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import ConfigError
from callboard.simulation import TraceRequest, clamped, read_trace, scaled
from callboard.simulation.prompts import prompt_token_ids

TRACES = Path(__file__).parent.parent / "data" / "traces"
MS = 1_000_000


def test_an_azure_trace() -> None:
    trace = read_trace(TRACES / "azure2023_conv_200.csv")
    assert len(trace) == 200
    assert trace[:2] == [TraceRequest(0, 389, 55), TraceRequest(295 * MS, 1317, 228)]


def test_a_mooncake_trace() -> None:
    trace = read_trace(TRACES / "mooncake_conversation_100.jsonl", limit=2)
    assert len(trace) == 2
    assert trace[1] == TraceRequest(0, 7322, 490, prefix_ids=(0, *range(14, 28)))


def test_traces_as_they_are_published(tmp_path: Path) -> None:
    azure, mooncake = tmp_path / "azure.csv", tmp_path / "mooncake.jsonl"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,110,27\n"
    )
    assert read_trace(azure) == [TraceRequest(0, 4808, 10), TraceRequest(52 * MS, 110, 27)]
    mooncake.write_text('{"timestamp": 27482, "input_length": 600, "output_length": 52, "hash_ids": [46, 47]}\n')
    assert read_trace(mooncake) == [TraceRequest(27_482 * MS, 600, 52, prefix_ids=(46, 47))]


def test_an_own_trace(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(
        '{"arrival_ms": 2.5, "output_tokens": 3, "prompt_token_ids": [5, 6, 7]}\n'
        "\n"
        '{"arrival_ms": 1, "output_tokens": 4, "prompt_tokens": 9, "tenant": "a", "priority": -1, '
        '"deadline_ms": 1500, "prefix_ids": [1, 2], "prefix_block_tokens": 4}\n'
    )
    assert read_trace(path) == [
        TraceRequest(1 * MS, 9, 4, "a", -1, 1500 * MS, (1, 2), 4),
        TraceRequest(2_500_000, 3, 3, token_ids=(5, 6, 7)),
    ]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "holds no requests"),
        ("a,b,c\n", "line 1: the head is not that of an Azure trace"),
        ("ms,context_tokens,generated_tokens\n0,5,x\n", "line 2: invalid literal"),
        ("ms,context_tokens,generated_tokens\n0,5\n", "line 2: list index out of range"),
        ('{"arrival_ms": 0, "output_tokens": 0, "prompt_tokens": 1}\n', "line 1: .*has no token"),
        ('{"arrival_ms": 0, "output_tokens": 1, "tokens": 1}\n', "line 1: .*unknown field `tokens`"),
        (
            '{"arrival_ms": 0, "output_tokens": 1, "prompt_tokens": 2, "prompt_token_ids": [1]}\n',
            "line 1: prompt_tokens is 2, prompt_token_ids has 1",
        ),
        ('{"t": 0, "in": 1, "out": 1, "h": [[0, 1]]}\n{"t": 0}\n', "line 2: .*missing required field"),
    ],
)
def test_faults_of_a_trace_name_the_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        read_trace(path)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "no.csv")


def test_scaling_and_cutting() -> None:
    trace = [TraceRequest(3000, 1000, 10, deadline_ns=77, prefix_ids=(1, 2), prefix_block_tokens=512)]
    assert scaled(trace, speedup=2.0, length_divisor=16) == [
        TraceRequest(1500, 63, 1, deadline_ns=77, prefix_ids=(1, 2), prefix_block_tokens=32)
    ]
    assert clamped(trace, max_prompt=100)[0].num_prompt_tokens == 100
    assert clamped(trace, max_output=5)[0].num_output_tokens == 5
    assert clamped(trace) == trace
    with_ids = [TraceRequest(0, 4, 1, token_ids=(9, 8, 7, 6))]
    assert scaled(with_ids, length_divisor=2)[0].token_ids == (9, 8)
    assert clamped(with_ids, max_prompt=3)[0].token_ids == (9, 8, 7)
    with pytest.raises(ValueError, match="above 0"):
        scaled(trace, speedup=0)


IDS = st.lists(st.integers(0, 3), max_size=6).map(tuple)


@given(ids=st.tuples(IDS, IDS), lengths=st.tuples(st.integers(1, 60), st.integers(1, 60)), size=st.integers(1, 12))
def test_prompts_share_what_their_ids_share(
    ids: tuple[tuple[int, ...], tuple[int, ...]], lengths: tuple[int, int], size: int
) -> None:
    requests = [
        TraceRequest(0, n, 1, prefix_ids=i, prefix_block_tokens=size) for n, i in zip(lengths, ids, strict=True)
    ]
    prompts = [prompt_token_ids(request, index) for index, request in enumerate(requests)]
    assert tuple(map(len, prompts)) == lengths
    num_shared_ids = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(*ids, strict=False))))
    num_shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(*prompts, strict=False))))
    assert num_shared == min(num_shared_ids * size, *lengths)


def test_a_prompt_that_the_trace_has() -> None:
    assert prompt_token_ids(TraceRequest(0, 3, 1, token_ids=(5, 6, 7)), 4) == [5, 6, 7]
