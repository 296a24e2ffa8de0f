"""The rule of acceptance that the topology names is the worker's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from callboard.actors.launch import prepare_launch
from callboard.bench.runner_here import RunnerHere
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import NewRow, StepPlan
from callboard.topology import topology_from

NUM_ROWS, PROMPT, DRAFT = 64, [40, 41, 42], 65


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """A runner that is made here sets those of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def drawn(model: Path, *settings: str) -> list[list[int]]:
    """Tokens of each row, which differ by their seeds alone, behind the prompt and one draft."""
    shared = ["model.dtype=float32", "model.max_model_len=16", f"scheduler.max_num_seqs={NUM_ROWS}"]
    shared += ["speculative.method=ngram", f"kv_cache.num_blocks={NUM_ROWS}", "process.worker.threads=1"]
    runner = RunnerHere(prepare_launch(topology_from(str(model), [*shared, *settings])))
    rows, ones = np.arange(NUM_ROWS, dtype=np.int32), np.ones(NUM_ROWS, np.int32)
    new_rows = [
        NewRow(
            row=row,
            run=row,
            request_id=str(row),
            choice=0,
            attempt=0,
            num_prompt_tokens=len(PROMPT),
            token_ids=np.array(PROMPT, np.int32).tobytes(),
            block_ids=np.array([row], np.int32).tobytes(),
            sampling=SamplingParams(seed=row, temperature=1.0, top_k=4, logit_bias=((DRAFT, 1.5),)),
        )
        for row in range(NUM_ROWS)
    ]
    plan = StepPlan(
        epoch=1,
        step=1,
        now_ns=0,
        new_rows=new_rows,
        removed_rows=b"",
        rows=rows.tobytes(),
        runs=rows.astype(np.int64).tobytes(),
        starts=(0 * ones).tobytes(),
        num_tokens=((len(PROMPT) + 1) * ones).tobytes(),
        samples=(ones == 1).tobytes(),
        num_drafts=ones.tobytes(),
        draft_ids=(DRAFT * ones).tobytes(),
        block_rows=b"",
        block_ids=b"",
    )
    result = runner.run(plan)
    counts, token_ids = np.frombuffer(result.num_sampled, np.int32), np.frombuffer(result.token_ids, np.int32)
    return [part.tolist() for part in np.split(token_ids, np.cumsum(counts)[:-1])]


@pytest.mark.slow
def test_the_rule_is_that_of_the_topology(tiny_llama_dir: Path) -> None:
    coupled = drawn(tiny_llama_dir)
    assert drawn(tiny_llama_dir, "speculative.acceptance=coupled") == coupled
    rejection = drawn(tiny_llama_dir, "speculative.acceptance=rejection")
    assert rejection != coupled
    for texts in (coupled, rejection):
        assert {len(text) for text in texts} == {1, 2}
        assert all((text[0] == DRAFT) == (len(text) == 2) for text in texts)
