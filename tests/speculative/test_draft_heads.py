"""Draft heads in an engine, against the formulas over the whole text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from callboard.checkpoints.draft_heads import find_head
from callboard.checkpoints.shape import Checkpoint, DraftCheckpoint
from callboard.errors import ConfigError, CorruptCheckpoint
from callboard.execution.draft_heads import LayerHeadProposer, MedusaProposer
from callboard.execution.input_batch import InputBatch
from callboard.execution.kv_tensors import KVTensors
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.models.decoder import Decoder
from callboard.models.draft_head_loader import load_layer_head, load_medusa
from callboard.speculative.proposer import ProposedDrafts, Proposer
from callboard.tests.kernels.sampling_laws import ALPHA, filtered_law, g_test
from callboard.tests.models.draft_head_files import Tensors, expected_drafts, write_head
from callboard.tests.models.families import (
    BLOCK_SIZE,
    MAX_LEN,
    Engine,
    Loaded,
    load,
    make_oracle,
    make_prompt,
    oracle_logits,
)

METHODS = ["eagle", "eagle3", "mtp", "medusa"]
NUM_TOKENS = 16
GREEDY = SamplingParams(seed=0, temperature=0.0)
KINDS = [GREEDY, SamplingParams(seed=5, temperature=0.9), SamplingParams(seed=6, temperature=1.2, top_k=20, top_p=0.9)]


def find(method: str, path: Path, loaded: Loaded) -> DraftCheckpoint:
    return find_head(method, str(path), Checkpoint("", "safetensors", str(path), ""), loaded.shape)


class Head:
    """One method's files, and proposers of it that write down what they are asked."""

    def __init__(self, method: str, loaded: Loaded, path: Path) -> None:
        self.method, self.loaded, self.path = method, loaded, path
        self.tensors: Tensors = write_head(method, loaded.oracle, path)
        self.found = find(method, path, loaded)
        self.drafted: list[tuple[list[int], list[int]]] = []
        """(known tokens, drafts)"""

    def make(self, batch: InputBatch, num_blocks: int, *, draws: bool) -> Proposer:
        target = self.loaded.model
        assert isinstance(target, Decoder)
        target.taps = ()
        proposer: LayerHeadProposer | MedusaProposer
        if self.method == "medusa":
            proposer = MedusaProposer(load_medusa(self.found, target), target, batch, draws=draws)
        else:
            head = load_layer_head(self.method, self.found, target, MAX_LEN)
            kv = KVTensors(self.found.shape, num_blocks, BLOCK_SIZE, torch.float32, torch.device("cpu"))
            kv.tensor.fill_(torch.nan)
            proposer = LayerHeadProposer(head, target, batch, kv, draws=draws)
        propose = proposer.propose

        def noted(*asked: np.ndarray) -> ProposedDrafts:
            rows, token_ids, num_known, _ = asked
            known = [token_ids[row, : num_known[row]].tolist() for row in rows.tolist()]
            found = propose(*asked)
            parts = np.split(found.token_ids, np.cumsum(found.counts)[:-1])
            self.drafted += zip(known, (part.tolist() for part in parts), strict=True)
            return found

        proposer.propose = noted  # type: ignore[method-assign]
        return proposer


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(make_oracle("qwen2", num_hidden_layers=6), tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="module")
def heads(loaded: Loaded, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Head]:
    return {method: Head(method, loaded, tmp_path_factory.mktemp(method)) for method in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_drafts_are_those_of_the_formulas(heads: dict[str, Head], method: str) -> None:
    """Of rows of several lengths side by side, in chunks, through preemptions and rejections."""
    head = heads[method]
    head.drafted.clear()
    prompts = [make_prompt(seed, 2 + 5 * seed) for seed in range(4)]
    engine = Engine(
        head.loaded.model, head.make, max_drafts=4, max_num_batched_tokens=14, num_blocks=18, pipeline_depth=2
    )
    engine.generate(prompts, NUM_TOKENS)
    assert engine.scheduler.statistics().num_preemptions > 0
    num_checked = 0
    for known, drafts in head.drafted[:: max(1, len(head.drafted) // 25)]:
        expected = expected_drafts(method, head.loaded.oracle, head.tensors, known, len(drafts))
        assert drafts[: len(expected)] == expected, known
        num_checked += len(expected)
    assert num_checked > 25


@pytest.mark.parametrize("num_examples", [5, pytest.param(100, marks=pytest.mark.nightly)])
def test_tokens_are_those_without_drafts(loaded: Loaded, heads: dict[str, Head], num_examples: int) -> None:
    @settings(max_examples=num_examples, deadline=None)
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        _check_tokens(loaded, heads, data)

    check()


def _check_tokens(loaded: Loaded, heads: dict[str, Head], data: st.DataObject) -> None:
    begin = make_prompt(1, 9)
    prompts = [begin + make_prompt(seed, 2 + seed) for seed in range(data.draw(st.integers(1, 5)))]
    sampling = [data.draw(st.sampled_from(KINDS)) for _ in prompts]
    limits = {
        "max_num_seqs": 8,
        "max_drafts": data.draw(st.integers(1, 8)),
        "pipeline_depth": data.draw(st.integers(1, 3)),
        "max_num_batched_tokens": data.draw(st.sampled_from([9, 40, 200])),
        "num_blocks": data.draw(st.sampled_from([16, 40, 400])),
        "prefix_caching": data.draw(st.booleans()),
    }
    head = heads[data.draw(st.sampled_from(METHODS))]
    engine, plain = Engine(loaded.model, head.make, **limits), Engine(loaded.model, **{**limits, "max_drafts": 0})
    for _ in range(2):  # the second time prefixes are found
        assert engine.generate(prompts, NUM_TOKENS, sampling) == plain.generate(prompts, NUM_TOKENS, sampling)
    assert engine.scheduler.statistics().num_draft_tokens > 0


def test_drafts_that_are_drawn_have_the_law_that_is_told(loaded: Loaded, heads: dict[str, Head]) -> None:
    """By the rule that uses it: of thousands of seeds the second token has the law of the target."""
    prompt, num_seeds = make_prompt(4, 6), 3000
    kinds = [SamplingParams(seed=seed, temperature=0.8, top_k=6) for seed in range(num_seeds)]
    engine = Engine(
        loaded.model,
        heads["eagle3"].make,
        acceptance="rejection",
        max_drafts=1,
        max_num_seqs=250,
        max_num_batched_tokens=2000,
        max_queued_requests=num_seeds,
        num_blocks=1000,
    )
    texts = [tuple(text[:2]) for text in engine.generate([prompt] * num_seeds, 3, kinds)]
    law: dict[tuple[int, ...], float] = {}
    for first, chance in _next_law(loaded, prompt).items():
        law |= {(first, second): chance * other for second, other in _next_law(loaded, [*prompt, first]).items()}
    number = {text: index for index, text in enumerate(law)}
    counts = Counter(number.get(text, -1) for text in texts)
    assert g_test(counts, {number[text]: chance for text, chance in law.items()}) > ALPHA
    statistics = engine.scheduler.statistics()
    assert 0 < statistics.num_accepted_tokens < statistics.num_draft_tokens


def _next_law(loaded: Loaded, tokens: list[int]) -> dict[int, float]:
    row = oracle_logits(loaded.oracle, tokens)[-1].double().tolist()
    return filtered_law(dict(enumerate(row)), temperature=0.8, top_k=6)


@pytest.mark.parametrize("method", ["eagle", "eagle3", "mtp"])
def test_a_prefix_that_the_head_has_computed_is_its_context(heads: dict[str, Head], method: str) -> None:
    head, prompt = heads[method], make_prompt(5, 30)
    engine = Engine(head.loaded.model, head.make, max_drafts=3, max_num_batched_tokens=100, prefix_caching=True)
    engine.generate([prompt], NUM_TOKENS)
    head.drafted.clear()
    engine.generate([prompt], NUM_TOKENS)
    known, drafts = head.drafted[0]
    expected = expected_drafts(method, head.loaded.oracle, head.tensors, known, len(drafts))
    assert len(known) == 31 and expected and drafts[: len(expected)] == expected


@pytest.mark.parametrize("method", METHODS)
def test_a_head_of_another_model_is_refused(loaded: Loaded, tmp_path: Path, method: str) -> None:
    other = make_oracle("qwen2", hidden_size=32, num_hidden_layers=4)
    write_head(method, other, tmp_path)
    assert isinstance(loaded.model, Decoder)
    with pytest.raises((CorruptCheckpoint, RuntimeError), match=r"hidden_size|shape"):
        if method == "medusa":
            load_medusa(find(method, tmp_path, loaded), loaded.model)
        else:
            load_layer_head(method, find(method, tmp_path, loaded), loaded.model, MAX_LEN)


def test_what_is_missing_is_named(loaded: Loaded, heads: dict[str, Head], tmp_path: Path) -> None:
    assert isinstance(loaded.model, Decoder)
    (tmp_path / "config.json").write_text((heads["eagle3"].path / "config.json").read_text())
    with pytest.raises(ConfigError, match="is no draft head"):
        find("eagle3", tmp_path, loaded)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin, which is a pickle"):
        find("eagle3", tmp_path, loaded)
    with pytest.raises(ConfigError, match=r"has no tensors model\.mtp_layers"):
        save_file({"a.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
        find("mtp", tmp_path, loaded)
    with pytest.raises(CorruptCheckpoint, match=r"has no midlayer\.self_attn"):
        load_layer_head("eagle3", heads["eagle"].found, loaded.model, MAX_LEN)
