"""A model cut into stages, with ranks in each, against transformers: each stage takes what the one before has made."""

from __future__ import annotations

import pytest
import torch

from callboard.checkpoints.stages import stage_of
from callboard.models.load import load_model
from callboard.tests.models.families import MAX_LEN
from callboard.tests.models.rank_threads import ThreadCollective, run_ranks
from callboard.tests.models.test_tensor_parallel import CHUNKS, CPU, PROMPT, saved


@pytest.mark.parametrize(("name", "num_stages", "size"), [
    ("llama-biases", 2, 1), ("llama-yarn", 3, 1), ("qwen2-tied", 4, 1), ("mistral-window", 2, 2), ("qwen3", 2, 3),
    ("gemma3", 3, 1), ("gemma3-gguf", 2, 2),
])  # fmt: skip
def test_logits_are_those_of_transformers(tmp_path, attention_factory, name, num_stages, size):
    """The layers of stages are counted together, and a tied head is with the last."""
    expected, checkpoint, shape = saved(name, tmp_path)

    def of_rank(collective: ThreadCollective) -> torch.Tensor:
        stages = [stage_of(shape.num_layers, index, num_stages) for index in range(num_stages)]
        models = [
            load_model(
                checkpoint,
                shape,
                torch.float32,
                CPU,
                MAX_LEN,
                collective=collective if size > 1 else None,
                stage=stage,
            )
            for stage in stages
        ]
        assert sum(model.local_shape.num_layers for model in models) == shape.num_layers
        assert all(model.shape == shape for model in models)
        attentions = [attention_factory(model.local_shape.windows) for model in models]
        pieces, start = [], 0
        for length in CHUNKS:
            positions, hidden = torch.arange(start, start + length), None
            for model, attention in zip(models, attentions, strict=True):
                ids = torch.tensor(PROMPT)[positions] if hidden is None else torch.full_like(positions, -1)
                hidden = model.forward(ids, positions, attention, hidden)
            pieces.append(models[-1].compute_logits(hidden))
            start += length
        return torch.cat(pieces)

    logits = run_ranks(size, of_rank)[0]
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("name", ["llama-biases", "qwen2-tied"])
def test_stages_hold_every_weight_once(tmp_path, name):
    """And each the rotary table; a tied head is the last stage's, beside the embedding of the first."""
    _, checkpoint, shape = saved(name, tmp_path)
    whole = load_model(checkpoint, shape, torch.float32, CPU, MAX_LEN)
    stages = [
        load_model(checkpoint, shape, torch.float32, CPU, MAX_LEN, stage=stage_of(shape.num_layers, index, 3))
        for index in range(3)
    ]
    tables = sum(table.nbytes for table in whole.rotary_tables)
    assert sum(stage.num_weight_bytes for stage in stages) == whole.num_weight_bytes + 2 * tables
