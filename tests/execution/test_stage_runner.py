"""Stages of a model, each on a thread, boards between: the tokens of one stage, one transfer less than stages."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from callboard.checkpoints import read_shape, resolve_checkpoint
from callboard.checkpoints.stages import stage_of
from callboard.errors import SamplingFailed
from callboard.execution.runner import ModelRunner
from callboard.execution.stage_links import HiddenReceiver, HiddenSender, StageLinks, TokenReceiver, TokenSender
from callboard.execution.stage_runner import StageRunner
from callboard.execution.torch_forward import TorchForward
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepPlan
from callboard.models.load import load_model
from callboard.shm_queue import BoardLayout, BoardReader, BoardWriter, close_board, create_board
from callboard.tests.execution.conftest import PlanMaker
from callboard.tests.execution.test_rank_samplers import MIXED, PROMPTS
from callboard.tests.models.families import BLOCK_SIZE, MAX_LEN, Engine, make_oracle
from callboard.tests.models.rank_threads import Meeting, ThreadCollective

NUM_BLOCKS, HIDDEN = 128, 64
CPU = torch.device("cpu")


def board(name: str) -> tuple[BoardWriter, BoardReader]:
    layout = BoardLayout(name, 0, 6, 1 << 16, 1)
    fds = create_board(layout)
    ends = BoardWriter(layout, fds), BoardReader(layout, fds, 0)
    close_board(fds)
    return ends


class StageThread:
    """Runs plans behind each other on a thread of its own, as a worker does."""

    def __init__(self, runner: StageRunner | ModelRunner) -> None:
        self.runner = runner
        self.errors: list[Exception] = []
        self._plans: deque[StepPlan | None] = deque()
        self._more = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main)
        self._thread.start()

    def give(self, plan: StepPlan | None) -> None:
        self._plans.append(plan)
        self._more.release()

    def join(self) -> None:
        self.give(None)
        self._thread.join()

    def _main(self) -> None:
        while True:
            self._more.acquire()
            if (plan := self._plans.popleft()) is None:
                return
            try:
                self.runner.launch(plan).result()
            except Exception as error:
                self.errors.append(error)


class Stages:
    """Of `num_stages` stages the last runs in the test's thread, as does its rank that samples; `size` ranks each."""

    def __init__(self, path: Path, num_stages: int, size: int = 1) -> None:
        checkpoint = resolve_checkpoint(str(path))
        shape = read_shape(checkpoint)
        self.senders: list[HiddenSender] = []
        meetings = [Meeting(size) for _ in range(num_stages)]
        links = [[board(f"hidden.{stage}.{rank}") for rank in range(size)] for stage in range(num_stages - 1)]
        token_layout = BoardLayout("tokens", 0, 6, 1 << 12, size)
        token_fds = create_board(token_layout)

        def make(index: int, rank: int) -> StageRunner | ModelRunner:
            stage = stage_of(shape.num_layers, index, num_stages)
            collective = ThreadCollective(meetings[index], rank) if size > 1 else None
            model = load_model(checkpoint, shape, torch.float32, CPU, MAX_LEN, collective=collective, stage=stage)
            receiver = HiddenReceiver(links[index - 1][rank][1], HIDDEN, torch.float32) if index else None
            sender = None if stage.is_last else HiddenSender(links[index][rank][0])
            tokens = TokenSender(BoardWriter(token_layout, token_fds)) if stage.is_last and rank == 0 else None
            forward = TorchForward(
                model,
                num_blocks=NUM_BLOCKS,
                block_size=BLOCK_SIZE,
                kv_dtype=torch.float32,
                collective=collective,
                links=StageLinks(receiver, sender),
                tokens=tokens,
            )
            forward.kv.tensor.fill_(torch.nan)
            limits = {"max_num_seqs": 8, "max_model_len": MAX_LEN}
            if sender is None:
                return ModelRunner(forward, **limits)
            self.senders.append(sender)
            told = TokenReceiver(BoardReader(token_layout, token_fds, rank)) if index == 0 else None
            return StageRunner(forward, sender, told, **limits)

        places = [(index, rank) for index in range(num_stages) for rank in range(size)]
        places.remove((num_stages - 1, 0))
        self.others = [StageThread(make(*place)) for place in places]
        self.last = make(num_stages - 1, 0)
        self.forward = self.last.forward
        close_board(token_fds)

    def launch(self, plan: StepPlan):
        for other in self.others:
            other.give(plan)
        return self.last.launch(plan)

    def close(self) -> None:
        for other in self.others:
            other.join()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stages")
    with torch.inference_mode():
        make_oracle("qwen2-tied").save_pretrained(path)
    return path


def tokens_of(
    checkpoint: Path,
    make_stages: Callable[[], Stages] | None,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    sampling: Sequence[SamplingParams] = (),
    **limits: object,
) -> tuple[list[list[int]], Engine]:
    found = resolve_checkpoint(str(checkpoint))
    engine = Engine(load_model(found, read_shape(found), torch.float32, CPU, MAX_LEN), **limits)
    if make_stages is not None:
        engine.runner = stages = make_stages()
    tokens = engine.generate(prompts, 12, sampling)
    if make_stages is not None:
        stages.close()
        assert [other.errors for other in stages.others] == [[]] * len(stages.others)
    return tokens, engine


@pytest.mark.parametrize(("num_stages", "size", "depth"), [(2, 1, 2), (3, 1, 3), (2, 1, 1), (4, 1, 2), (2, 2, 2)])
def test_tokens_are_those_of_one_stage(checkpoint, num_stages, size, depth):
    settings = {"sampling": MIXED, "pipeline_depth": depth}
    one, _ = tokens_of(checkpoint, None, **settings)
    several, _ = tokens_of(checkpoint, lambda: Stages(checkpoint, num_stages, size), **settings)
    assert several == one


def test_preemption_and_the_prefix_cache_change_no_token(checkpoint):
    prompts = [PROMPTS[3][:36] + prompt for prompt in PROMPTS]
    one, _ = tokens_of(checkpoint, None, prompts)
    limits = {"num_blocks": 32, "max_num_batched_tokens": 64, "pipeline_depth": 2, "prefix_caching": True}
    several, engine = tokens_of(checkpoint, lambda: Stages(checkpoint, 2), prompts, **limits)
    assert several == one
    assert engine.scheduler.statistics().num_preemptions > 0


@pytest.mark.parametrize("num_stages", [2, 4])
def test_transfers_of_a_step_are_one_less_than_stages(checkpoint, num_stages):
    stages, plans = Stages(checkpoint, num_stages), PlanMaker(num_blocks=32)
    plans.place(0, PROMPTS[1])
    for step, start in enumerate((0, len(PROMPTS[1]), len(PROMPTS[1]) + 1), 1):
        num_tokens = 1 if start else len(PROMPTS[1])
        stages.launch(plans.plan([(0, start, num_tokens, True)])).result()
        assert sum(sender.num_sent for sender in stages.senders) == (num_stages - 1) * step
    stages.close()


@pytest.mark.parametrize("num_stages", [2, 3])
def test_a_step_that_cannot_be_sampled_in_fails_in_all_stages(checkpoint, monkeypatch, num_stages):
    """Step 2 is behind step 1, which fails: no stage has it; the next plan begins anew."""
    stages, plans = Stages(checkpoint, num_stages), PlanMaker(num_blocks=32)
    plans.place(0, PROMPTS[1])
    first = plans.plan([(0, 0, len(PROMPTS[1]), True)])
    second = plans.plan([(0, len(PROMPTS[1]), 1, True)])

    def fail(*arguments: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(stages.last.sampler._sampler.logit_changes, "change", fail)
    for other in stages.others:
        other.give(first)
        other.give(second)
    with pytest.raises(MemoryError):
        stages.last.launch(first)
    monkeypatch.undo()
    plans.removed.append(0)
    plans.place(1, PROMPTS[0])
    stages.launch(plans.plan([(1, 0, len(PROMPTS[0]), True)])).result()
    stages.close()
    for other in stages.others:
        assert [type(error) for error in other.errors] == [SamplingFailed]


def test_a_late_token_of_a_run_that_is_gone_does_not_touch_the_next_one(checkpoint):
    """Position 3 of row 0 is drawn for a run that ends; the next run there has a token of its prompt at it."""
    stages, plans = Stages(checkpoint, 2), PlanMaker(num_blocks=32)
    plans.place(0, PROMPTS[0])
    stages.launch(plans.plan([(0, 0, len(PROMPTS[0]), True)])).result()
    plans.remove(0)
    plans.place(0, PROMPTS[3])
    stages.launch(plans.plan([(0, 0, len(PROMPTS[3]), True)])).result()
    stages.close()
    (first,) = stages.others
    assert first.runner.batch.token_ids[0, : len(PROMPTS[3])].tolist() == PROMPTS[3]
