"""Runners of several ranks, threads here, in step: the same tokens as one rank whatever a request asks for."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from callboard.checkpoints import read_shape, resolve_checkpoint
from callboard.errors import RankFailed, SamplingFailed
from callboard.execution.collectives.counted import CountedCollective
from callboard.execution.runner import ModelRunner
from callboard.execution.token_masks import UnreadMasks
from callboard.execution.torch_forward import TorchForward
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepPlan, StepResult
from callboard.models.load import load_model
from callboard.speculative.make_proposer import make_proposer
from callboard.tests.execution.conftest import PlanMaker
from callboard.tests.models.families import BLOCK_SIZE as ENGINE_BLOCK_SIZE
from callboard.tests.models.families import MAX_LEN, Engine, is_greedy, make_oracle, make_prompt
from callboard.tests.models.rank_threads import Meeting, ThreadCollective

PROMPTS = [make_prompt(seed, length) for seed, length in enumerate((3, 12, 31, 40))]
NUM_BLOCKS = 128
GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text())


class RankThread:
    """Runs what it is given, one after the other, on a thread of its own."""

    def __init__(self, make: Callable[[], ModelRunner]) -> None:
        self.runner: ModelRunner
        self.results: list[StepResult | Exception] = []
        self._plans: deque[StepPlan | None] = deque()
        self._more = threading.Semaphore(0)
        self._make = make
        self._thread = threading.Thread(target=self._main)
        self._thread.start()

    def give(self, plan: StepPlan | None) -> None:
        self._plans.append(plan)
        self._more.release()

    def join(self) -> list[StepResult | Exception]:
        self.give(None)
        self._thread.join()
        return self.results

    def _main(self) -> None:
        self.runner = self._make()
        while True:
            self._more.acquire()
            if (plan := self._plans.popleft()) is None:
                return
            try:
                self.results.append(self.runner.run(plan))
            except Exception as error:
                self.results.append(error)


class Ranks:
    """Rank 0 in the test's thread, the others in theirs; each plan goes to all. A runner to `Engine`."""

    def __init__(self, path: Path, size: int, masks: object = None, **changes: object) -> None:
        checkpoint = resolve_checkpoint(str(path))
        shape = read_shape(checkpoint)
        meeting = Meeting(size)
        self.abort = meeting.barrier.abort
        self.collectives = [CountedCollective(ThreadCollective(meeting, rank)) for rank in range(size)]

        def make(rank: int) -> ModelRunner:
            collective = self.collectives[rank]
            model = load_model(checkpoint, shape, torch.float32, torch.device("cpu"), MAX_LEN, collective=collective)
            forward = TorchForward(
                model,
                num_blocks=NUM_BLOCKS,
                block_size=ENGINE_BLOCK_SIZE,
                kv_dtype=torch.float32,
                collective=collective,
            )
            forward.kv.tensor.fill_(torch.nan)
            settings = dict(changes)
            if settings.get("proposer") is not None:
                options = {"min_ngram": 2, "max_ngram": 8}
                settings["proposer"] = make_proposer("ngram", options, 8, MAX_LEN)
            source = masks if rank == 0 or masks is None else UnreadMasks()
            return ModelRunner(forward, max_num_seqs=8, max_model_len=MAX_LEN, masks=source, **settings)

        self.others = [RankThread(lambda rank=rank: make(rank)) for rank in range(1, size)]
        self.first = make(0)
        self.forward = self.first.forward

    def launch(self, plan: StepPlan):
        for other in self.others:
            other.give(plan)
        return self.first.launch(plan)

    def close(self) -> list[list[StepResult | Exception]]:
        return [other.join() for other in self.others]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    with torch.inference_mode():
        make_oracle(
            "llama-biases", num_attention_heads=6, num_key_value_heads=3, head_dim=16, hidden_size=96
        ).save_pretrained(path)
    return path


def tokens_of(
    checkpoint: Path,
    size: int,
    num_tokens: int = 12,
    sampling: Sequence[SamplingParams] = (),
    prompts: Sequence[Sequence[int]] = PROMPTS,
    **limits: object,
) -> tuple[list[list[int]], Engine]:
    """Of `size` ranks; 0: of a model that is whole."""
    found = resolve_checkpoint(str(checkpoint))
    model = load_model(found, read_shape(found), torch.float32, torch.device("cpu"), MAX_LEN)
    proposer = make_proposer("ngram", {"min_ngram": 2, "max_ngram": 8}, 8, MAX_LEN) if "max_drafts" in limits else None
    acceptance = limits.pop("acceptance", "coupled")
    engine = Engine(model, proposer, acceptance=acceptance, **limits)
    if size:
        engine.runner = ranks = Ranks(checkpoint, size, proposer=proposer, acceptance=acceptance)
    tokens = engine.generate(prompts, num_tokens, sampling)
    if size:
        for results in ranks.close():
            assert not [result for result in results if isinstance(result, Exception)]
    return tokens, engine


@pytest.mark.parametrize(("name", "kv_heads", "size"), [("llama-rope3", 8, 2), ("qwen3", 4, 4), ("gemma3", 2, 4)])
def test_greedy_tokens_are_those_of_transformers(tmp_path, name, kv_heads, size):
    with torch.inference_mode():
        oracle = make_oracle(name, num_attention_heads=8, num_key_value_heads=kv_heads)
    oracle.save_pretrained(tmp_path)
    tokens, _ = tokens_of(tmp_path, size, 8)
    with torch.inference_mode():
        assert all(is_greedy(oracle, prompt, generated) for prompt, generated in zip(PROMPTS, tokens, strict=True))


MIXED = [
    SamplingParams(seed=1, temperature=1.0, top_p=0.9, logprobs=3),
    SamplingParams(seed=2, temperature=0.8, top_k=20, prompt_logprobs=2),
    SamplingParams(seed=3, temperature=1.3, presence_penalty=0.5, logit_bias=((7, 2.0),)),
]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("depth", [1, 2])
def test_tokens_are_those_of_one_rank(checkpoint, size, depth):
    """2 ranks of 3 groups: the second has one group of zeros."""
    one, _ = tokens_of(checkpoint, 0, sampling=MIXED, pipeline_depth=depth)
    several, _ = tokens_of(checkpoint, size, sampling=MIXED, pipeline_depth=depth)
    assert several == one


@pytest.mark.parametrize("acceptance", ["coupled", "rejection"])
def test_drafts_are_verified_by_all_ranks_alike(checkpoint, acceptance):
    prompts = [[5, 6, 7, 8] * 6, [9, 10, 11] * 7, *PROMPTS[:2]]
    settings = {"max_drafts": 3, "acceptance": acceptance, "sampling": MIXED[1:2], "prompts": prompts}
    one, alone = tokens_of(checkpoint, 0, **settings)
    several, engine = tokens_of(checkpoint, 3, **settings)
    assert several == one
    assert engine.scheduler.statistics().num_accepted_tokens == alone.scheduler.statistics().num_accepted_tokens > 0


def test_preemption_and_the_prefix_cache_change_no_token(checkpoint):
    prompts = [PROMPTS[3][:36] + prompt for prompt in PROMPTS]
    one, _ = tokens_of(checkpoint, 0, prompts=prompts)
    cached, engine = tokens_of(checkpoint, 3, prompts=prompts, prefix_caching=True)
    small, few = tokens_of(checkpoint, 3, prompts=prompts, num_blocks=32, max_num_batched_tokens=64)
    assert cached == small == one
    assert engine.scheduler.statistics().prefix_cache_hits > 0
    assert few.scheduler.statistics().num_preemptions > 0


def test_what_ranks_exchange_in_a_step(checkpoint):
    """Two sums a layer, and the embedding, the logits and the tokens once: 4 layers, a hidden size of 96, float32.

    The numbers of the reference case, 80 layers of 8,192 in bfloat16, are in the same ratio."""
    ranks = Ranks(checkpoint, 3)
    plans = PlanMaker(num_blocks=32)
    plans.place(0, PROMPTS[1])
    steps = [(0, len(PROMPTS[1])), (len(PROMPTS[1]), 1), (len(PROMPTS[1]) + 1, 1)]
    for start, num_tokens in steps:
        ranks.launch(plans.plan([(0, start, num_tokens, True)])).result()
        counts = ranks.collectives[0].take_step()
        assert (counts.all_reduces, counts.all_gathers, counts.gathers, counts.broadcasts) == (2 * 4, 1, 1, 1)
        assert counts.all_reduces * 80 // 4 == GOLDEN["allreduce_per_step_tp"]["value"]
        of_a_token = counts.all_reduce_bytes // num_tokens
        assert of_a_token == 2 * 4 * 96 * 4
        assert of_a_token * 80 * 8192 * 2 // (4 * 96 * 4) == GOLDEN["allreduce_bytes_per_token_step"]["value"]
        assert counts.gather_bytes == 56 * 4  # a third of 160 logits, in whole units of 8
    ranks.close()


def test_a_request_that_rank_0_cannot_sample_fails_the_step_everywhere(checkpoint, monkeypatch):
    ranks = Ranks(checkpoint, 2)
    plans = PlanMaker(num_blocks=32)
    plans.place(0, PROMPTS[1])

    def fail(*arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(ranks.first.sampler._sampler.logit_changes, "change", fail)
    with pytest.raises(MemoryError):
        ranks.launch(plans.plan([(0, 0, len(PROMPTS[1]), True)]))
    monkeypatch.undo()
    plans.removed.append(0)
    plans.place(1, PROMPTS[0])
    ranks.launch(plans.plan([(1, 0, len(PROMPTS[0]), True)])).result()
    (results,) = ranks.close()
    assert isinstance(results[0], SamplingFailed)
    assert isinstance(results[1], StepResult)


def test_a_rank_that_fails_within_a_step_ends(checkpoint, monkeypatch):
    ranks = Ranks(checkpoint, 2)
    plans = PlanMaker(num_blocks=32)
    plans.place(0, PROMPTS[1])
    monkeypatch.setattr(ranks.first.forward.model, "_forward", lambda *arguments: 1 / 0)
    with pytest.raises(RankFailed, match="ZeroDivisionError"):
        ranks.first.launch(plans.plan([(0, 0, len(PROMPTS[1]), True)]))
    ranks.abort()  # as a death would be noticed
    ranks.close()
