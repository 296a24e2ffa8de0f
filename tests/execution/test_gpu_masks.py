"""Masks on the device's path: its sampler beside the one in torch, its runner beside the torch path, and what is
launched when."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.checkpoints import resolve_checkpoint
from callboard.execution.device.cuda import CudaDevice
from callboard.execution.device.device_sampler import DeviceSampler
from callboard.execution.device.kernel_sampler import KernelStepSampler
from callboard.execution.device.limits import RunnerLimits
from callboard.execution.device.runner import DeviceRunner
from callboard.execution.device.seam import Device
from callboard.execution.device.staging import StagingRing
from callboard.execution.device.start import make_operations
from callboard.execution.device.step_sampler import TorchStepSampler
from callboard.execution.input_batch import InputBatch
from callboard.execution.pending_step import HeldStep
from callboard.execution.prepare_inputs import prepare_inputs
from callboard.execution.runner import ModelRunner
from callboard.execution.token_masks import TokenMasks
from callboard.execution.torch_forward import TorchForward
from callboard.execution.torch_sampler import TorchSampler
from callboard.kernels.bitmask_words import allowed_tokens
from callboard.kernels.device_operations import TorchOperations
from callboard.models.device_form import load_device_decoder
from callboard.tests.execution.late_device import LateDevice
from callboard.tests.execution.mask_board import MaskBoard, MaskedAnswers, words_of
from callboard.tests.execution.test_gpu_sampler import KINDS
from callboard.tests.kernels.gpu import DEVICE, IS_INTERPRETED
from callboard.tests.models.families import load, make_oracle, make_prompt

VOCAB = 1300
MAX_ROWS = 12
BANS = [{"bad_token_ids": tuple((i,) for i in range(VOCAB))}, {"allowed_token_ids": (1, 2, 3)}]
"""Which leave nothing beside a mask."""


def copy_of(masks):
    return TokenMasks(masks.indexes, masks.words.copy(), masks.is_late)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["beside the host", "by itself"])
def test_every_kind_of_row_is_sampled_under_its_mask_as_in_torch(make_plan_maker, way):
    batch, maker, rng = InputBatch(MAX_ROWS, 64, 4), make_plan_maker(200), np.random.default_rng(2)
    ours = DeviceSampler(torch.clone, batch, VOCAB, MAX_ROWS + 4, DEVICE)
    theirs = TorchSampler(torch.clone, batch, VOCAB, torch.device("cpu"))
    kinds = [*KINDS, *BANS]
    for row, sampling in enumerate(kinds):
        maker.place(row, [5, 6, 7, 20, 20 + row], num_blocks=0, is_constrained=row != 1, **sampling)
    plan = maker.plan([(row, 0, 5, True) for row in range(len(kinds))])
    batch.apply(plan)
    ours.apply(plan)
    theirs.apply(plan)
    inputs = prepare_inputs(batch, plan)
    indexes = np.array([row for row in range(len(kinds)) if row not in (1, 4)])[::-1].copy()
    allowed = [set(rng.permutation(VOCAB)[: rng.integers(4, 300)].tolist()) - {1, 2, 3} for _ in indexes]
    words = np.stack([words_of(tokens, VOCAB) for tokens in allowed])
    masks = TokenMasks(indexes, words & words_of(range(VOCAB), VOCAB), np.arange(len(kinds)) == 4)
    hidden = torch.from_numpy(rng.normal(0, 3, (int(inputs.query_starts[-1]), VOCAB)).astype(np.float32))
    expected = theirs.sample(hidden, inputs, copy_of(masks))
    positions = (inputs.sample_positions - 1).astype(np.int64)
    kind = ours.demands.kind(inputs.sample_rows)
    assert kind.has_masks and kind.has_changes
    assert ours.demands.is_recordable(inputs.sample_rows, inputs.sample_positions)
    if way == "beside the host":
        found = ours.sample(hidden.to(DEVICE), inputs, copy_of(masks))
        tokens, fields = found.token_ids, found.logprobs
    else:
        padding = 3
        logits = torch.cat((hidden[inputs.last_tokens], torch.full((padding, VOCAB), torch.nan))).to(DEVICE)
        rows = torch.from_numpy(np.r_[inputs.sample_rows, [MAX_ROWS] * padding].astype(np.int32)).to(DEVICE)
        ring = StagingRing(make_device(), 2, 1 << 16)
        ours.place_masks(copy_of(masks), inputs.sample_rows, inputs.sample_positions, ring)
        ours.launch(logits, rows, torch.from_numpy(np.r_[positions, [0] * padding]).to(DEVICE), kind)
        everything = ours.outputs.everything.cpu().numpy()
        tokens, fields = everything[: len(kinds)], ours.logprob_fields(everything, inputs.sample_rows)
    in_time = [row for row in range(len(kinds)) if row != 4]
    assert tokens[in_time].tolist() == expected.token_ids[in_time].tolist()
    assert all(tokens[index] in allowed[place] for place, index in enumerate(indexes))
    assert fields["logprob_rows"] == expected.logprobs["logprob_rows"]
    for name in ("logprobs", "top_logprobs"):
        found, wanted = (np.frombuffer(each[name], np.float32) for each in (fields, expected.logprobs))
        if name == "logprobs":
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert not np.isnan(found).any()


def test_what_a_constrained_row_forbids_needs_no_host_beside_the_kernels(make_plan_maker):
    batch, maker = InputBatch(MAX_ROWS, 64, 4), make_plan_maker(200)
    sampler = DeviceSampler(torch.clone, batch, VOCAB, MAX_ROWS, DEVICE)
    many = tuple((token, 1.0) for token in range(1100))
    for row, sampling in enumerate([*KINDS[6:], {"logit_bias": many}]):
        maker.place(row, [5, 6, 7], num_blocks=0, is_constrained=True, **sampling)
    plan = maker.plan([(row, 0, 3, True) for row in range(4)])
    batch.apply(plan)
    sampler.apply(plan)
    demands = sampler.demands
    recordable = [demands.is_recordable(np.array([row]), np.array([3])) for row in range(4)]
    assert recordable == [True, True, True, False]
    assert demands.has_changes[:4].all()


# The runner


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory):
    path = tmp_path_factory.mktemp("qwen3")
    with torch.inference_mode():
        loaded = load(make_oracle("qwen3"), path)
        checkpoint = resolve_checkpoint(str(path))
        operations = TorchOperations() if IS_INTERPRETED else make_operations(loaded.shape, 64, torch.float32, DEVICE)
        return loaded, load_device_decoder(checkpoint, loaded.shape, torch.float32, DEVICE, operations, 120)


def make_device() -> Device:
    """Where the runner computes."""
    return LateDevice(records=True) if IS_INTERPRETED else CudaDevice(DEVICE)


class HeldDevice(LateDevice):
    """Has come to the end of no forward pass until the test says so."""

    is_at_end = False

    def mark(self):
        return self

    def is_past(self):
        return self.is_at_end

    def wait(self):
        return


@pytest.fixture
def board(qwen3):
    board = MaskBoard(qwen3[0].shape.vocab_size)
    yield board
    board.region.close()


@pytest.fixture
def device_runner(qwen3, board):
    def make(make_sampler=KernelStepSampler, device=None):
        runner = DeviceRunner(
            qwen3[1],
            device or make_device(),
            RunnerLimits(8, 64, 120, 2),
            num_blocks=64,
            block_size=4,
            kv_dtype=torch.float32,
            make_sampler=make_sampler,
            masks=board,
        )
        runner.pool.tensors.tensor.fill_(torch.nan)
        return runner

    return make


@pytest.fixture
def torch_runner(qwen3, board):
    model = qwen3[0].model
    forward = TorchForward(model, num_blocks=64, block_size=4, kv_dtype=torch.float32)
    return ModelRunner(forward, max_num_seqs=8, max_model_len=120, masks=board)


WISHES = [
    {},
    {"temperature": 1.1, "seed": 3, "top_p": 0.9},
    {"min_tokens": 3, "stop_token_ids": tuple(range(60)), "logprobs": 2},
    {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.4, "bad_token_ids": ((7,), (8, 9))},
]
PROMPTS = [make_prompt(seed, length) for seed, length in enumerate((3, 9, 14, 6))]


def some_tokens(vocab_size):
    def allowed_at(row, position):
        rng = np.random.default_rng(1000 * row + position)
        return set(rng.permutation(vocab_size)[:20].tolist())

    return allowed_at


def place_all(maker, allowed_at):
    for row, (prompt, wishes) in enumerate(zip(PROMPTS, WISHES, strict=True)):
        maker.place(row, prompt, num_blocks=0, is_constrained=row != 1, **wishes)


@pytest.fixture
def expected(torch_runner, make_plan_maker, board):
    got = MaskedAnswers(torch_runner, make_plan_maker(64), board)
    for row, (prompt, wishes) in enumerate(zip(PROMPTS, WISHES, strict=True)):
        got.place(row, prompt, allowed_at=some_tokens(board.vocab_size) if row != 1 else None, **wishes)
    got.run(4)
    return got.known


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make_sampler", "depth"), [(KernelStepSampler, 2), (TorchStepSampler, 1), (TorchStepSampler, 2)]
)
def test_tokens_are_those_of_the_torch_path_at_every_depth(
    device_runner, make_plan_maker, board, expected, make_sampler, depth
):
    runner, maker, allowed_at = device_runner(make_sampler), make_plan_maker(64, seed=1), some_tokens(board.vocab_size)
    maker.next_run = 500  # so that the masks of the other runner's rows are nobody's
    place_all(maker, allowed_at)
    known, launched = [list(prompt) for prompt in PROMPTS], []

    def publish():
        step = launched.pop(0)
        for row, token in enumerate(np.frombuffer(step.result().token_ids, np.int32).tolist()):
            known[row].append(token)

    computed = [0] * 4
    for _ in range(4):
        ends = [len(tokens) + len(launched) for tokens in known]
        plan = maker.plan([(row, computed[row], ends[row] - computed[row], True) for row in range(4)])
        step = runner.launch(plan)
        assert isinstance(step, HeldStep)
        if launched:
            publish()
        for row in (0, 2, 3):
            board.write(row, maker.rows[row].run, ends[row], allowed_at(row, ends[row]))
        assert step.go_on()
        launched.append(step)
        computed = ends
        if depth == 1:
            publish()
    while launched:
        publish()
    assert known == [expected[row] for row in range(4)]
    for row in (0, 2, 3):
        assert all(token in allowed_at(row, place) for place, token in list(enumerate(known[row]))[len(PROMPTS[row]) :])


@pytest.mark.slow
@pytest.mark.skipif(not IS_INTERPRETED, reason="a GPU comes to the end of a forward pass by itself")
def test_sampling_waits_for_the_masks_or_the_end_of_the_forward_pass(device_runner, make_plan_maker, board):
    device = HeldDevice()
    runner, maker = device_runner(device=device), make_plan_maker(64)
    place_all(maker, None)
    step = runner.launch(maker.plan([(row, 0, len(prompt), True) for row, prompt in enumerate(PROMPTS)]))
    board.write(0, maker.rows[0].run, 3, {11})
    assert not step.go_on() and step.is_held
    board.write(2, maker.rows[2].run, 14, {12})
    board.write(3, maker.rows[3].run, 6, {13})
    assert step.go_on(), "all masks are there: the device need not have come so far"
    tokens = np.frombuffer(step.result().token_ids, np.int32).tolist()
    assert tokens[:1] + tokens[2:] == [11, 12, 13]
    behind = runner.launch(maker.plan([(row, len(prompt), 1, True) for row, prompt in enumerate(PROMPTS)]))
    board.write(3, maker.rows[3].run, 7, {14})
    assert not behind.go_on()
    device.is_at_end = True
    assert behind.go_on(), "the device waits for nobody"
    result = behind.result()
    assert np.frombuffer(result.num_sampled, np.int32).tolist() == [0, 1, 0, 1]
    assert np.frombuffer(result.token_ids, np.int32)[1] == 14
    assert result.logprob_rows == b""


@pytest.mark.slow
@pytest.mark.parametrize("make_sampler", [KernelStepSampler, TorchStepSampler])
def test_a_late_row_changes_nobody_and_may_be_computed_on(device_runner, make_plan_maker, board, make_sampler):
    allowed_at, tokens = some_tokens(board.vocab_size), []
    for is_late in (True, False):
        runner, maker = device_runner(make_sampler), make_plan_maker(64)
        place_all(maker, allowed_at)
        for row in (0, 2) if is_late else (0, 2, 3):
            board.write(row, maker.rows[row].run, len(PROMPTS[row]), allowed_at(row, len(PROMPTS[row])))
        step = runner.launch(maker.plan([(row, 0, len(prompt), True) for row, prompt in enumerate(PROMPTS)]))
        assert step.go_on()
        behind = runner.launch(maker.plan([(row, len(prompt), 1, True) for row, prompt in enumerate(PROMPTS)]))
        first = step.result()
        for row in (0, 2) if is_late else (0, 2, 3):
            board.write(row, maker.rows[row].run, len(PROMPTS[row]) + 1, allowed_at(row, 50))
        second = behind.result()
        for result in (first, second):
            if is_late:
                assert np.frombuffer(result.num_sampled, np.int32).tolist() == [1, 1, 1, 0]
                assert np.frombuffer(result.logprob_rows, np.int32).tolist() == [2]
            found = np.frombuffer(result.token_ids, np.int32)[:3].tolist()
            tokens.append((found, result.logprobs, result.top_ids, result.top_logprobs))
    assert tokens[:2] == tokens[2:]


@pytest.mark.slow
@pytest.mark.parametrize("num_behind", [0, 1])
@pytest.mark.parametrize("extra", [{}, {"logprobs": 50}], ids=["by itself", "beside the host"])
def test_a_late_row_goes_on_from_its_last_token(device_runner, torch_runner, make_plan_maker, board, num_behind, extra):
    """Behind a step in flight that went on with a token that nobody knows, but which the mask allows: penalties count
    the known ones only."""
    wishes = {"repetition_penalty": 3.0, "frequency_penalty": 4.0, "presence_penalty": 1.0} | extra
    allowed_at, known = lambda row, position: range(board.vocab_size), []
    for runner, first_run in ((torch_runner, 100), (device_runner(), 500)):
        maker = make_plan_maker(64)
        maker.next_run = first_run
        got = MaskedAnswers(runner, maker, board)
        got.place(0, PROMPTS[2], allowed_at=allowed_at, **wishes)
        steps = []
        for start in range(num_behind + 1 if runner is not torch_runner else 0):
            steps.append(runner.launch(maker.plan([(0, start + 13, 1, True) if start else (0, 0, 14, True)])))
            assert steps[-1].go_on()
        for step in steps:
            assert np.frombuffer(step.result().num_sampled, np.int32).tolist() == [0]
        got.run(4, {0: 13 if steps else 0})
        known.append(got.known[0])
    assert known[0] == known[1]


def test_warm_up_reads_no_masks(device_runner, board):
    runner = device_runner(TorchStepSampler)
    runner.warm_up()
    assert board.num_reads == 0


def test_words_of_the_test_are_those_of_the_kernels():
    assert set(np.flatnonzero(allowed_tokens(words_of({3, 40, 1299}, VOCAB), VOCAB)).tolist()) == {3, 40, 1299}
