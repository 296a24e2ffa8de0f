"""A draft model that the topology names: found, checked, counted, loaded, and used by the runner of a worker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from callboard.actors.launch import Launch, prepare_launch
from callboard.bench.runner_here import RunnerHere
from callboard.errors import ConfigError
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import NO_DRAFTING, NewRow, StepPlan, StepResult
from callboard.tests.models.draft_head_files import make_tensors, write_head
from callboard.tests.models.families import load, make_oracle
from callboard.topology import topology_from

BLOCKS = 8


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A runner that is made here sets those of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def launch(model: Path, *settings: str) -> Launch:
    shared = ["model.dtype=float32", "model.max_model_len=64", "scheduler.max_num_seqs=2", "process.worker.threads=1"]
    return prepare_launch(topology_from(str(model), [*shared, f"kv_cache.num_blocks={BLOCKS}", *settings]))


def new_row(sampling: SamplingParams) -> NewRow:
    return NewRow(
        row=0,
        run=0,
        request_id="",
        choice=0,
        attempt=0,
        num_prompt_tokens=5,
        token_ids=np.arange(40, 45, dtype=np.int32).tobytes(),
        block_ids=np.arange(4, dtype=np.int32).tobytes(),
        sampling=sampling,
    )


def run(
    runner: RunnerHere, step: int, new_rows: list[NewRow], start: int, count: int, room: int, known: int | None = None
) -> StepResult:
    """Row 0 computes so many positions, or, with room for drafts, goes on where it stands; without, from `known` on."""
    if known is not None and not room:
        start = known
    plan = StepPlan(
        epoch=1,
        step=step,
        now_ns=0,
        new_rows=new_rows,
        removed_rows=b"",
        rows=np.zeros(1, np.int32).tobytes(),
        runs=np.zeros(1, np.int64).tobytes(),
        starts=np.array([start], np.int32).tobytes(),
        num_tokens=np.array([count], np.int32).tobytes(),
        samples=b"\1",
        max_drafts=np.array([room or NO_DRAFTING], np.int32).tobytes(),
        draft_ends=np.array([60], np.int32).tobytes(),
    )
    return runner.run(plan)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_the_model_itself_drafts_what_it_will_draw(tiny_llama_dir: Path, rule: str) -> None:
    drafting = ["speculative.method=draft_model", f"speculative.model={tiny_llama_dir}"]
    ready = launch(tiny_llama_dir, *drafting, f"speculative.acceptance={rule}")
    alone = launch(tiny_llama_dir)
    assert ready.ledger.block_bytes == 2 * alone.ledger.block_bytes
    assert ready.ledger.weight_bytes == 2 * alone.ledger.weight_bytes
    assert ready.ledger.activation_bytes >= 2 * alone.ledger.activation_bytes
    runner = RunnerHere(ready)
    run(runner, 1, [new_row(SamplingParams(seed=3, temperature=1.0))], 0, 5, 0)
    for step, room in ((2, 3), (3, 1), (4, 5)):
        result = run(runner, step, [], 5, 1, room)
        assert np.frombuffer(result.num_drafted, np.int32).tolist() == [room]
        assert np.frombuffer(result.num_sampled, np.int32).tolist() == [room + 1]


def with_mtp(model: Path, folder: Path) -> Path:
    """A copy with layers for several tokens ahead among its tensors."""
    oracle = LlamaForCausalLM.from_pretrained(model)
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors") | make_tensors("mtp", oracle)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "mtp"])
def test_heads_draft_and_change_no_token(tiny_llama_dir: Path, tmp_path: Path, method: str) -> None:
    """The tiny model has two layers, of which EAGLE-3 reads what its configuration names."""
    if method == "mtp":
        model, drafting = with_mtp(tiny_llama_dir, tmp_path / "m"), ["speculative.method=mtp"]
    else:
        model, drafting = tiny_llama_dir, [f"speculative.method={method}", f"speculative.model={tmp_path}"]
        write_head(method, LlamaForCausalLM.from_pretrained(model), tmp_path, taps=(0, 1, 1))
    ready, alone = launch(model, *drafting), launch(tiny_llama_dir)
    assert ready.ledger.weight_bytes > alone.ledger.weight_bytes
    assert (ready.ledger.block_bytes > alone.ledger.block_bytes) == (method != "medusa")
    texts = []
    for each in (ready, alone):
        runner, tokens, step = RunnerHere(each), list[int](), 1
        row = new_row(SamplingParams(seed=3, temperature=1.0))
        results = [run(runner, step, [row], 0, 5, 0)]
        while sum(len(result.token_ids) // 4 for result in results) < 12:
            step += 1
            results.append(run(runner, step, [], 5, 1, 3 if each is ready else 0, known=5 + len(tokens)))
            tokens += np.frombuffer(results[-1].token_ids, np.int32).tolist()
        texts.append([token for result in results for token in np.frombuffer(result.token_ids, np.int32).tolist()][:12])
        drafted = sum(np.frombuffer(result.num_drafted, np.int32).sum() for result in results)
        assert (drafted > 0) == (each is ready)
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_a_draft_model_that_cannot_be(tiny_llama_dir: Path, tmp_path: Path) -> None:
    other = load(make_oracle("qwen2"), tmp_path).shape
    ours = launch(tiny_llama_dir).shape
    with pytest.raises(ConfigError) as caught:
        launch(tiny_llama_dir, "speculative.method=draft_model", f"speculative.model={tmp_path}")
    told = str(caught.value)
    assert f"a vocabulary of {other.vocab_size:,} tokens" in told and f"one of {ours.vocab_size:,}" in told
    with pytest.raises(ConfigError, match="no file or directory"):
        launch(tiny_llama_dir, "speculative.method=draft_model", "speculative.model=./nothing.gguf")


def test_a_draft_model_for_shorter_requests(tiny_llama_dir: Path) -> None:
    from callboard.topology.check_speculative import check_draft_model

    ready = launch(tiny_llama_dir)
    topology = topology_from("x", ["speculative.method=draft_model", "speculative.model=y", "model.max_model_len=64"])
    (problem,) = check_draft_model(topology, ready.shape, replace(ready.shape, max_position=60))
    assert "takes 60 tokens" in problem.sentence() and "lower [model] max_model_len to 60" in problem.sentence()
