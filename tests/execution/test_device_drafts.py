"""Drafts on a device: tokens are those without, whatever is drafted and however the steps are cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.execution.device.limits import RunnerLimits
from callboard.execution.device.runner import DeviceRunner
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.speculative.make_proposer import make_proposer
from callboard.speculative.proposer import Proposer
from callboard.tests.execution.late_device import LateDevice
from callboard.tests.execution.test_device_steps import Both, load_both
from callboard.tests.models.families import BLOCK_SIZE, MAX_LEN, VOCAB_SIZE, Engine, make_prompt
from callboard.tests.speculative.scripted import ScriptedProposer

NUM_TOKENS = 20
PROMPTS = [make_prompt(seed, 4 + 3 * seed) for seed in range(6)] + [make_prompt(seed, 5) * 3 for seed in range(2)]
KINDS = [
    SamplingParams(seed=0, temperature=0.0),
    SamplingParams(seed=5, temperature=0.9, top_p=0.9),
    SamplingParams(seed=7, temperature=0.7, frequency_penalty=0.4, repetition_penalty=1.3),
    SamplingParams(seed=9, temperature=0.8, min_tokens=9, stop_token_ids=tuple(range(3, 60)), logprobs=2),
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return load_both("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture(scope="module")
def texts(both: Both) -> list[list[list[int]]]:
    """Without drafts, on the torch path: of each kind, of each prompt."""
    engine = Engine(both.loaded.model, max_num_batched_tokens=128)
    return [engine.generate(PROMPTS, NUM_TOKENS, [kind] * len(PROMPTS)) for kind in KINDS]


def drafting_engine(both: Both, proposer: Proposer, device: LateDevice, graphs: str, **limits: object) -> Engine:
    engine = Engine(both.loaded.model, **limits)
    bounds = engine.scheduler.limits
    engine.runner = runner = DeviceRunner(
        both.decoder,
        device,
        RunnerLimits(
            bounds.max_num_seqs, bounds.max_num_batched_tokens, MAX_LEN, bounds.pipeline_depth, bounds.max_drafts
        ),
        num_blocks=bounds.num_blocks,
        block_size=BLOCK_SIZE,
        kv_dtype=torch.float32,
        graphs=graphs,  # type: ignore[arg-type]
        proposer=proposer,
    )
    runner.pool.tensors.tensor.fill_(torch.nan)  # a slot that is read unwritten shows up in every token
    return engine


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_tokens_are_those_without_drafts(both: Both, texts: list[list[list[int]]], data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(1, len(PROMPTS)))
    kinds = data.draw(st.lists(st.sampled_from([0, 0, 0, 1, 2, 3]), min_size=num_rows, max_size=num_rows))
    wanted = [texts[kind][index] for index, kind in enumerate(kinds)]
    known = {tuple(prompt): text for prompt, text in zip(PROMPTS, wanted, strict=False)}
    share = data.draw(st.sampled_from([1.0, 0.7, 0.0, None]))
    engine = drafting_engine(
        both,
        make_proposer("ngram", {}, 8, MAX_LEN) if share is None else ScriptedProposer(known, share, VOCAB_SIZE),
        LateDevice(records=data.draw(st.booleans())),
        data.draw(st.sampled_from(["lazy", "off"])),
        max_drafts=data.draw(st.integers(1, 6)),
        pipeline_depth=data.draw(st.integers(1, 3)),
        max_num_batched_tokens=data.draw(st.sampled_from([17, 40, 128])),
        num_blocks=data.draw(st.sampled_from([20, 40, 128])),
        prefix_caching=data.draw(st.booleans()),
    )
    if data.draw(st.booleans()):
        engine.runner.warm_up()
    assert engine.generate(PROMPTS[:num_rows], NUM_TOKENS, [KINDS[kind] for kind in kinds]) == wanted


@pytest.mark.parametrize("depth", [1, 2])
def test_drafts_are_verified_in_recorded_steps(both: Both, texts: list[list[list[int]]], depth: int) -> None:
    known = {tuple(prompt): text for prompt, text in zip(PROMPTS, texts[0], strict=True)}
    device = LateDevice(records=True)
    proposer = ScriptedProposer(known, 1.0, VOCAB_SIZE)
    engine = drafting_engine(
        both, proposer, device, "lazy", max_drafts=3, pipeline_depth=depth, max_num_batched_tokens=128
    )
    engine.runner.warm_up()
    while engine.runner.use_idle_time():
        pass
    before = device.num_replays
    assert engine.generate(PROMPTS, NUM_TOKENS) == texts[0]
    # The first token comes with the prompt; then four a step, and at the end some steps that only some rows are in.
    assert NUM_TOKENS // 4 <= proposer.num_asked <= NUM_TOKENS // 4 + 3
    assert device.num_replays - before >= 2 * (NUM_TOKENS // 4)  # forward pass and sampling of each
