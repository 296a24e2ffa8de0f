"""A model over several ranks, threads here, against transformers and against the file: logits, tensors, exchanges."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from callboard.checkpoints import Checkpoint, ModelShape, read_shape, resolve_checkpoint
from callboard.checkpoints.sharding import Sharding
from callboard.models.load import load_model, read_pieces, read_shares
from callboard.models.registry import model_family
from callboard.tests.models.families import CASES, MAX_LEN, make_oracle, make_prompt, oracle_logits
from callboard.tests.models.rank_threads import ThreadCollective, run_ranks
from callboard.tests.models.test_gguf_families import write

CPU = torch.device("cpu")
PROMPT = make_prompt(0, 40)
CHUNKS = [16, 23, 1]


def saved(name: str, path: Path, **changes: object) -> tuple[torch.Tensor, Checkpoint, ModelShape]:
    """Transformers' logits of the prompt, and where its weights are."""
    with torch.inference_mode():
        oracle = make_oracle(name, **changes)
        logits = oracle_logits(oracle, PROMPT)
    oracle.save_pretrained(path)
    checkpoint = resolve_checkpoint(str(path))
    return logits, checkpoint, read_shape(checkpoint)


def logits_over(checkpoint: Checkpoint, shape: ModelShape, size: int, attention_factory, dtype=torch.float32):
    """(logits of the prompt on each rank, what its collective counted)."""

    def of_rank(collective: ThreadCollective):
        model = load_model(checkpoint, shape, dtype, CPU, MAX_LEN, collective=collective)
        assert model.shape == shape
        attention, pieces, start = attention_factory(shape.windows), [], 0
        collective.counts.clear()
        collective.num_bytes.clear()
        for length in CHUNKS:
            positions = torch.arange(start, start + length)
            hidden = model.forward(torch.tensor(PROMPT)[positions], positions, attention)
            pieces.append(model.compute_logits(hidden))
            start += length
        return torch.cat(pieces), collective

    return run_ranks(size, of_rank)


@pytest.mark.parametrize(("name", "size"), [(name, 2 + index % 3) for index, name in enumerate(CASES)])
def test_logits_are_those_of_transformers(tmp_path, attention_factory, name, size):
    """4 heads in 2 groups, so a group a rank, two ranks of three that share one, each group on two ranks."""
    expected, checkpoint, shape = saved(name, tmp_path)
    (logits, _), *others = logits_over(checkpoint, shape, size, attention_factory)
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)
    assert all(empty.shape == (len(PROMPT), 0) for empty, _ in others)


@pytest.mark.parametrize(
    ("size", "heads", "kv_heads", "units", "tokens"),
    [(2, 8, 8, 96, 160), (4, 8, 2, 96, 160), (2, 9, 3, 90, 163), (5, 8, 4, 96, 160), (8, 8, 1, 61, 171)],
)
def test_what_does_not_divide_is_filled_up(tmp_path, attention_factory, size, heads, kv_heads, units, tokens):
    settings = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 16, "hidden_size": 72}
    changes = {**settings, "intermediate_size": units, "vocab_size": tokens}
    expected, checkpoint, shape = saved("llama-biases", tmp_path, **changes)
    (logits, _), *_ = logits_over(checkpoint, shape, size, attention_factory)
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=2e-4)


def test_two_sums_a_layer_and_nothing_else_is_summed(tmp_path, attention_factory):
    _, checkpoint, shape = saved("qwen3", tmp_path)
    for _, collective in logits_over(checkpoint, shape, 3, attention_factory):
        steps = len(CHUNKS)
        assert collective.counts == {"all_reduce": 2 * 4 * steps, "all_gather": steps, "gather": steps}
        assert collective.num_bytes["all_reduce"] == 2 * 4 * len(PROMPT) * 64 * 4  # of layers, tokens, hidden, float32


@pytest.mark.parametrize("form", ["safetensors", "gguf", "dummy", "Q8_0", "Q4_1"])
@pytest.mark.parametrize("size", [2, 4])
def test_shares_put_together_are_the_file(tmp_path, gguf_writer, gqa_oracle, form, size):
    """Blocks of 32 columns, which the shares of 48, 24 and 16 columns cut."""
    checkpoint, shape = written(form, tmp_path, gguf_writer, gqa_oracle)
    expected = model_family(shape.architecture).tensor_shapes(shape)
    sharding = Sharding(shape, size)
    whole = joined(read_pieces(checkpoint, shape, expected, None, quantized=False))
    of_ranks = [joined(read_shares(checkpoint, sharding, rank, expected, None)) for rank in range(size)]
    for name, tensor in whole.items():
        rebuilt = torch.full_like(tensor, torch.nan)
        for rank, parts in enumerate(of_ranks):
            shares = sharding.of_tensor(rank, name, tuple(tensor.shape))
            here = tuple(slice(share.num_real) for share in shares)
            rebuilt[tuple(slice(share.first, share.last) for share in shares)] = parts[name][here]
            filling = parts[name].clone()
            filling[here] = 0
            assert not filling.any()
        torch.testing.assert_close(rebuilt, tensor, rtol=0, atol=0)


def written(form: str, path: Path, gguf_writer, gqa_oracle) -> tuple[Checkpoint, ModelShape]:
    if form.startswith("Q"):
        file = path / "model.gguf"
        gguf_writer(file, gqa_oracle, form)
        return Checkpoint("", "gguf", str(file), ""), gqa_oracle.shape
    oracle = make_oracle("llama-biases")
    if form == "gguf":
        write(path / "model.gguf", oracle, "llama")
        checkpoint = resolve_checkpoint(str(path / "model.gguf"))
    else:
        oracle.save_pretrained(path)
        checkpoint = resolve_checkpoint(f"{'dummy:' if form == 'dummy' else ''}{path}")
    return checkpoint, read_shape(checkpoint)


def joined(pieces) -> dict[str, torch.Tensor]:
    parts: dict[str, list[torch.Tensor]] = {}
    for name, first, rows in pieces:
        assert first == sum(len(part) for part in parts.setdefault(name, []))
        parts[name].append(rows.float().clone())
    return {name: torch.cat(rows) for name, rows in parts.items()}


def test_a_rank_holds_its_share(tmp_path):
    """4 ranks of a model without biases: of all matrices a quarter, of norms and of rotary tables all."""
    _, checkpoint, shape = saved("qwen3", tmp_path, num_attention_heads=8, num_key_value_heads=4)
    family = model_family(shape.architecture)

    def of_rank(collective: ThreadCollective) -> int:
        return load_model(checkpoint, shape, torch.float32, CPU, MAX_LEN, collective=collective).num_weight_bytes

    held = set(run_ranks(4, of_rank))
    local = Sharding(shape, 4).local_shape
    assert held == {family.planned_bytes(local, torch.float32, CPU, MAX_LEN)}
