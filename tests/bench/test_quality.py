"""The quality of a dtype: perplexity and most likely tokens are transformers', whatever the shape of the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from callboard.bench.quality import Options, dtypes, measure, prose, table, windows_of
from callboard.bench.runner_here import RunnerHere, launch_of
from callboard.bench.teacher_forcing import Scores, StepShape, equal_lengths, score, write_greedily
from callboard.checkpoints import resolve_checkpoint
from callboard.text import load_tokenizer

WINDOWS = [[5, 9, 200, 31, 7, 7, 64, 120, 3, 40, 41], [11, 12], [250, 1, 99, 98, 97, 96, 95, 94]]


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    """A runner that is made here sets those of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runner(tiny_llama_dir: Path) -> RunnerHere:
    sizes = {"num_rows": 4, "max_len": 40, "max_step_tokens": 64, "num_threads": 1}
    return RunnerHere(launch_of(str(tiny_llama_dir), dtype="float32", **sizes))


@pytest.fixture(scope="module")
def oracle(tiny_llama_dir: Path) -> torch.nn.Module:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama_dir, dtype=torch.float32)
    model.train(False)
    return model


@torch.inference_mode()
def loss_and_best(model: torch.nn.Module, window: list[int]) -> tuple[float, list[int]]:
    """transformers' own loss: the mean over all tokens but the first."""
    ids = torch.tensor([window])
    found = model(ids, labels=ids)
    return float(found.loss), found.logits[0, :-1].argmax(-1).tolist()


@pytest.mark.parametrize("shape", ["1x512", "1x3", "2x4", "3x1", "4x1"])
def test_perplexity_and_most_likely_tokens_are_those_of_transformers(
    runner: RunnerHere, oracle: torch.nn.Module, shape: str
) -> None:
    scores = score(runner, WINDOWS, StepShape.parse(shape))
    found = [loss_and_best(oracle, window) for window in WINDOWS]
    sizes = [len(window) - 1 for window in WINDOWS]
    mean = sum(loss * size for (loss, _), size in zip(found, sizes, strict=True)) / sum(sizes)
    assert scores.perplexity == pytest.approx(math.exp(mean), rel=1e-4)
    assert scores.best_ids.tolist() == [best for _, bests in found for best in bests]


def test_greedy_continuations_are_those_of_transformers(runner: RunnerHere, oracle: torch.nn.Module) -> None:
    written = write_greedily(runner, WINDOWS, 9)
    for window, row in zip(WINDOWS, written.tolist(), strict=True):
        ids = list(window)
        for _ in range(9):
            with torch.inference_mode():
                ids.append(int(oracle(torch.tensor([ids])).logits[0, -1].argmax()))
        assert row == ids[len(window) :]


def test_agreement_and_the_first_difference() -> None:
    scores = [Scores(np.zeros(4, np.float32), np.array(ids, np.int32)) for ids in ([1, 2, 3, 4], [1, 2, 9, 4])]
    assert scores[0].agreement(scores[1]) == 0.75
    one, other = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]]), np.array([[1, 2, 3], [1, 9, 3], [9, 2, 3]])
    assert equal_lengths(one.astype(np.int32), other.astype(np.int32)).tolist() == [3, 1, 0]


@pytest.mark.parametrize("text", ["0x4", "4x0", "4", "x", "1x2x3"])
def test_what_is_no_shape_of_a_step(text: str) -> None:
    with pytest.raises(ValueError):
        StepShape.parse(text)


def test_a_text_in_windows(tiny_llama_dir: Path) -> None:
    """A byte is a token, and nothing stands in front: 10 of them in windows of 4, or of 3, where the last would be one
    token, of which nothing can be said."""
    tokenizer = load_tokenizer(resolve_checkpoint(str(tiny_llama_dir)), has_chat_template=False)
    text = "abcdefghij" + prose()
    windows = windows_of(tokenizer, text, 10, 4)
    assert [len(window) for window in windows] == [4, 4, 2]
    assert tokenizer.decode([token for window in windows for token in window]) == "abcdefghij"
    assert [len(window) for window in windows_of(tokenizer, text, 10, 3)] == [3, 3, 3]


def test_the_text_has_thousands_of_words() -> None:
    assert len(prose().split()) > 20_000
    assert "assignment" in prose()


@pytest.mark.slow
def test_all_dtypes_in_one_table(tiny_llama_dir: Path) -> None:
    """The first line is compared with itself; a bfloat16 model is near it; the same numbers are in the table."""
    assert dtypes()[0] == "float32"
    steps = (StepShape(1, 64), StepShape(4, 1))
    options = Options(
        ("float32", "bfloat16"), num_tokens=200, window=64, steps=steps, num_prompts=2, output_len=8, num_threads=1
    )
    lines = list(measure(str(tiny_llama_dir), prose(), options))
    assert [(line.dtype, line.steps) for line in lines] == [
        ("float32", "1 x 64"),
        ("float32", "4 x 1"),
        ("bfloat16", "1 x 64"),
        ("bfloat16", "4 x 1"),
    ]
    first = lines[0]
    assert (first.perplexity_change, first.agreement, first.mean_equal_tokens, first.num_equal_prompts) == (0, 1, 8, 2)
    for line in lines:
        assert line.perplexity == pytest.approx(first.perplexity * (1 + line.perplexity_change))
        assert abs(line.perplexity_change) < 0.01
    assert [row.split()[0] for row in table(lines, options)] == ["dtype", "float32", "float32", "bfloat16", "bfloat16"]
