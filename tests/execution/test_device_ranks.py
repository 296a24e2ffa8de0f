"""The device's path over several ranks, threads here: the same tokens as one rank's, and what they exchange."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from callboard.checkpoints import read_shape, resolve_checkpoint
from callboard.errors import RankFailed, SamplingFailed
from callboard.execution.collectives.counted import CollectiveCounts, CountedCollective
from callboard.execution.collectives.one_rank import OneRank
from callboard.execution.device.graphs import GraphCache
from callboard.execution.device.limits import RunnerLimits
from callboard.execution.device.runner import DeviceRunner
from callboard.kernels.device_operations import TorchOperations
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepPlan
from callboard.models.device_form import load_device_decoder
from callboard.models.load import load_model
from callboard.speculative.make_proposer import make_proposer
from callboard.tests.execution.late_device import LateDevice
from callboard.tests.execution.test_rank_samplers import RankThread
from callboard.tests.models.families import BLOCK_SIZE, MAX_LEN, Engine, is_greedy, make_oracle, make_prompt
from callboard.tests.models.rank_threads import Meeting, ThreadCollective

PROMPTS = [make_prompt(seed, length) for seed, length in enumerate((3, 12, 31, 40))]
SAMPLING = [
    SamplingParams(seed=5, temperature=1.2, top_p=0.9),
    SamplingParams(seed=0, temperature=0.0),
    SamplingParams(seed=7, temperature=0.8, repetition_penalty=1.5, frequency_penalty=0.5, logprobs=3),
    SamplingParams(seed=0, temperature=0.0, presence_penalty=1.0, logit_bias=((7, 2.5),), prompt_logprobs=2),
]
"""Some have a part of the host's in them."""


class DeviceRanks:
    """Rank 0 in the test's thread, the others in theirs; each plan goes to all. A runner to `Engine`."""

    def __init__(self, path: Path, size: int, engine: Engine, *, has_proposer: bool = False, records: bool) -> None:
        checkpoint = resolve_checkpoint(str(path))
        shape, bounds = read_shape(checkpoint), engine.scheduler.limits
        meeting = Meeting(size)
        self.abort = meeting.barrier.abort
        self.collectives = [CountedCollective(ThreadCollective(meeting, rank)) for rank in range(size)]
        max_drafts = 4 if has_proposer else 0

        def make(rank: int) -> DeviceRunner:
            cpu = torch.device("cpu")
            with torch.inference_mode():
                decoder = load_device_decoder(
                    checkpoint, shape, torch.float32, cpu, TorchOperations(), MAX_LEN, None, self.collectives[rank]
                )
            proposer = make_proposer("ngram", {"min_ngram": 2, "max_ngram": 8}, 8, MAX_LEN) if has_proposer else None
            depth = bounds.pipeline_depth
            runner = DeviceRunner(
                decoder,
                LateDevice(records=records),
                RunnerLimits(bounds.max_num_seqs, bounds.max_num_batched_tokens, MAX_LEN, depth, max_drafts),
                num_blocks=bounds.num_blocks,
                block_size=BLOCK_SIZE,
                kv_dtype=torch.float32,
                proposer=proposer,
            )
            runner.pool.tensors.tensor.fill_(torch.nan)
            return runner

        self.others = [RankThread(lambda rank=rank: make(rank)) for rank in range(1, size)]
        self.first = make(0)

    def launch(self, plan: StepPlan):
        for other in self.others:
            other.give(plan)
        return self.first.launch(plan)

    def close(self) -> list[Exception]:
        """What was raised on the others."""
        return [result for other in self.others for result in other.join() if isinstance(result, Exception)]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    with torch.inference_mode():
        make_oracle(
            "llama-biases", num_attention_heads=6, num_key_value_heads=3, head_dim=16, hidden_size=96
        ).save_pretrained(path)
    return path


def whole_engine(path: Path, **limits: object) -> Engine:
    found = resolve_checkpoint(str(path))
    return Engine(load_model(found, read_shape(found), torch.float32, torch.device("cpu"), MAX_LEN), **limits)


def tokens_of(
    path: Path,
    size: int,
    num_tokens: int = 12,
    sampling: Sequence[SamplingParams] = (),
    *,
    records: bool = False,
    **limits: object,
) -> tuple[list[list[int]], DeviceRanks]:
    engine = whole_engine(path, **limits)
    has_proposer = "max_drafts" in limits
    engine.runner = ranks = DeviceRanks(path, size, engine, has_proposer=has_proposer, records=records)
    tokens = engine.generate(PROMPTS, num_tokens, sampling)
    assert ranks.close() == []
    return tokens, ranks


@pytest.mark.parametrize(("name", "kv_heads", "size"), [("llama-rope3", 8, 2), ("qwen3", 4, 4), ("gemma3", 2, 4)])
def test_greedy_tokens_are_those_of_transformers(tmp_path, name, kv_heads, size):
    with torch.inference_mode():
        oracle = make_oracle(name, num_attention_heads=8, num_key_value_heads=kv_heads)
        oracle.save_pretrained(tmp_path)
        tokens, _ = tokens_of(tmp_path, size, 8, max_num_batched_tokens=48, pipeline_depth=2)
        for prompt, generated in zip(PROMPTS, tokens, strict=True):
            assert is_greedy(oracle, prompt, generated)


@pytest.mark.parametrize(("size", "limits"), [
    (3, {"pipeline_depth": 2, "num_blocks": 40, "max_num_batched_tokens": 32}),
    (2, {"pipeline_depth": 2, "max_num_seqs": 3, "prefix_caching": True, "max_num_batched_tokens": 64}),
    (2, {"pipeline_depth": 2, "max_num_batched_tokens": 32, "records": True}),
], ids=["preemption", "padded heads, rows used again", "recorded"])  # fmt: skip
@pytest.mark.parametrize("sampling", [(), SAMPLING], ids=["greedy", "wishes"])
def test_tokens_are_those_of_one_rank(checkpoint, size, limits, sampling):
    tokens, _ = tokens_of(checkpoint, size, 12, sampling, **limits)
    limits = {name: value for name, value in limits.items() if name != "records"}
    assert tokens == whole_engine(checkpoint, **limits).generate(PROMPTS, 12, sampling)


def test_drafts_are_verified_alike_on_all_ranks(checkpoint):
    limits = {"pipeline_depth": 2, "max_num_batched_tokens": 48}
    tokens, _ = tokens_of(checkpoint, 2, 24, max_drafts=3, **limits)
    assert tokens == whole_engine(checkpoint, **limits).generate(PROMPTS, 24)


def test_a_step_exchanges_two_sums_a_layer_and_is_told_its_tokens(checkpoint):
    engine = whole_engine(checkpoint, max_num_batched_tokens=128)
    engine.runner = ranks = DeviceRanks(checkpoint, 2, engine, records=False)
    steps: list[CollectiveCounts] = []
    launch = ranks.launch

    def counted(plan: StepPlan):
        made = launch(plan)
        steps.append(ranks.collectives[0].take_step())
        return made

    ranks.launch = counted
    engine.generate(PROMPTS, 3)
    assert ranks.close() == []
    shape = engine.runner.first.decoder.shape
    assert len(steps) >= 3
    for step in steps:
        assert (step.all_reduces, step.all_gathers, step.gathers, step.broadcasts) == (2 * shape.num_layers, 1, 1, 1)
    decode = steps[-1]  # four rows
    assert decode.all_reduce_bytes == 2 * shape.num_layers * 4 * shape.hidden_size * 4
    assert decode.broadcast_bytes == 4 * 4


def test_what_fails_in_sampling_fails_on_all_ranks(checkpoint, monkeypatch):
    engine = whole_engine(checkpoint, max_num_batched_tokens=128)
    engine.runner = ranks = DeviceRanks(checkpoint, 2, engine, records=False)

    def sample(hidden, inputs, *_):
        ranks.first._compute_logits(hidden[torch.from_numpy(inputs.last_tokens)])
        raise ZeroDivisionError

    monkeypatch.setattr(ranks.first._sampler._sampler, "sample", sample)
    with pytest.raises(ZeroDivisionError):
        engine.generate(PROMPTS, 3, [SAMPLING[0]])
    assert [type(error) for error in ranks.close()] == [SamplingFailed]


def test_what_fails_between_two_exchanges_ends_the_rank(checkpoint, monkeypatch):
    engine = whole_engine(checkpoint, max_num_batched_tokens=128)
    engine.runner = ranks = DeviceRanks(checkpoint, 2, engine, records=False)
    monkeypatch.setattr(ranks.first.decoder.operations, "attend", lambda *args, **options: 1 / 0, raising=False)
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        engine.generate(PROMPTS, 3)
    ranks.abort()
    assert len(ranks.close()) == 1


def test_calls_of_a_graph_are_counted_when_it_runs():
    group = CountedCollective(OneRank())

    class Recorder(LateDevice):
        """Runs the body while it records it, as a real one does, and nothing when the graph runs."""

        def record(self, run, memory):
            run()
            return lambda: None

    graphs = GraphCache(Recorder(records=True), "lazy", group)
    for _ in range(5):
        graphs.run("body", lambda: group.all_reduce(torch.ones(4)))
    assert graphs.num_graphs == 1
    assert group.statistics() == CollectiveCounts(all_reduces=5, all_reduce_bytes=80)
