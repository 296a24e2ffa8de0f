"""The sampler whose state stays on the device beside the one in torch, over steps of random logits: tokens,
log-probabilities, and parameters of rows that come and go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from callboard.execution.device.device_sampler import DeviceSampler
from callboard.execution.device.row_demands import MAX_BIAS
from callboard.execution.input_batch import InputBatch
from callboard.execution.prepare_inputs import prepare_inputs
from callboard.execution.torch_sampler import TorchSampler
from callboard.kernels.gpu.sampling import SamplingKind
from callboard.kernels.gpu.sampling_rows import MAX_TOP
from callboard.tests.kernels.gpu import DEVICE

VOCAB = 1300
MAX_ROWS = 12


def is_recordable(demands, row, position=3):
    return demands.is_recordable(np.array([row], np.int32), np.array([position], np.int32))


@dataclass
class Pair:
    """Both samplers over one batch; hidden states are logits."""

    batch: InputBatch
    torch_sampler: TorchSampler
    device_sampler: DeviceSampler
    computed: dict[int, int]
    rng: np.random.Generator

    def step(self, maker):
        """Every row computes what it has not yet, and samples. Returns (inputs, what each sampler found)."""
        tokens = {row: int(self.batch.num_known[row]) for row in self.computed}
        tokens |= {new.row: len(new.token_ids) // 4 for new in maker.new}
        scheduled = [
            (row, self.computed.get(row, 0), known - self.computed.get(row, 0), True) for row, known in tokens.items()
        ]
        plan = maker.plan(scheduled)
        self.batch.apply(plan)
        self.torch_sampler.apply(plan)
        self.device_sampler.apply(plan)
        inputs = prepare_inputs(self.batch, plan)
        hidden = torch.from_numpy(self.rng.normal(0, 3, (int(inputs.query_starts[-1]), VOCAB)).astype(np.float32))
        expected = self.torch_sampler.sample(hidden, inputs)
        found = self.device_sampler.sample(hidden.to(DEVICE), inputs)
        self.batch.write_sampled(inputs.sample_rows, inputs.sample_positions, expected.token_ids)
        self.computed = tokens
        return inputs, expected, found


@pytest.fixture
def pair():
    batch = InputBatch(MAX_ROWS, 64, 4)
    cpu = torch.device("cpu")
    return Pair(
        batch,
        TorchSampler(torch.clone, batch, VOCAB, cpu),
        DeviceSampler(torch.clone, batch, VOCAB, MAX_ROWS + 4, DEVICE),
        {},
        np.random.default_rng(5),
    )


KINDS = [
    {},
    {"temperature": 0.9, "seed": 2**64 - 3, "choice": 2, "first_output_index": 3},
    {
        "temperature": 1.4,
        "top_k": 20,
        "top_p": 0.8,
        "min_p": 0.02,
        "seed": 5,
        "logprobs": 4,
        "processed_logprobs": True,
    },
    {"logit_bias": ((17, 40.0), (3, -40.0), (1299, 12.5), (5000, 9.0)), "logprobs": 2},
    {"presence_penalty": 9.0, "frequency_penalty": -0.5, "temperature": 0.5, "seed": 8},
    {"repetition_penalty": 3.0, "presence_penalty": 1.0, "logit_bias": ((20, 30.0), (21, 30.0)), "logprobs": 1},
    {"allowed_token_ids": tuple(range(10, 40)), "repetition_penalty": 1.2, "temperature": 1.0, "seed": 4},
    {"min_tokens": 3, "stop_token_ids": tuple(range(900)), "logit_bias": ((20, 100.0), (30, 90.0)), "logprobs": 3},
    {"bad_token_ids": ((77,), (40, 41)), "logit_bias": ((77, 100.0), (41, 50.0), (40, 49.0))},
]


def assert_equal(pair, inputs, expected, found):
    """A request takes the first of its row of the most likely; of equal ones, such as those that a filter cuts, any may
    come first."""
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.logprobs.keys() == expected.logprobs.keys()
    if not found.logprobs:
        return
    (indexes, chosen, top), (found_indexes, found_chosen, found_top) = (
        (
            np.frombuffer(logprobs["logprob_rows"], np.int32),
            np.frombuffer(logprobs["logprobs"], np.float32),
            np.frombuffer(logprobs["top_logprobs"], np.float32).reshape(len(logprobs["logprobs"]) // 4, -1),
        )
        for logprobs in (expected.logprobs, found.logprobs)
    )
    assert indexes.tolist() == found_indexes.tolist()
    np.testing.assert_allclose(found_chosen, chosen, rtol=1e-5, atol=1e-5)
    for i, row in enumerate(inputs.sample_rows[indexes]):
        count = pair.batch.sampling.num_logprobs[row]
        np.testing.assert_allclose(found_top[i, :count], top[i, :count], rtol=1e-5, atol=1e-5)


def test_every_kind_of_row_is_sampled_as_in_torch(pair, make_plan_maker):
    maker = make_plan_maker(200)
    for row, sampling in enumerate(KINDS):
        maker.place(row + 2, [5, 6, 7, 20, 20 + row], num_blocks=0, **sampling)
    for _ in range(2):
        inputs, expected, found = pair.step(maker)
        assert_equal(pair, inputs, expected, found)
    for row in (3, 6, 7):  # another request, and two that come back with their tokens
        maker.remove(row)
    known = {row: pair.batch.token_ids[row, : pair.batch.num_known[row]].tolist() for row in (6, 7)}
    maker.place(3, [1, 2, 3], num_blocks=0, temperature=0.7, seed=9)
    for row in (6, 7):
        maker.place(row, known[row], num_prompt_tokens=5, num_blocks=0, **KINDS[row - 2])
    for row in (3, 6, 7):
        del pair.computed[row]
    inputs, expected, found = pair.step(maker)
    assert_equal(pair, inputs, expected, found)


def test_more_than_the_device_has_columns_for_is_done_beside_it(pair, make_plan_maker):
    maker = make_plan_maker(200)
    many = tuple((token_id, float(token_id % 7)) for token_id in range(MAX_BIAS + 100))
    maker.place(1, [5, 6], num_blocks=0, logit_bias=many, repetition_penalty=1.3, logprobs=1)
    maker.place(4, [5, 6, 8], num_blocks=0, temperature=0.8, seed=3, logprobs=MAX_TOP + 8)
    maker.place(5, [5, 6, 8], num_blocks=0, logit_bias=((9, 50.0),), logprobs=2, processed_logprobs=True)
    for _ in range(2):
        inputs, expected, found = pair.step(maker)
        assert_equal(pair, inputs, expected, found)
    demands = pair.device_sampler.demands
    assert not is_recordable(demands, 4)
    assert is_recordable(demands, 5)


def test_kind_of_a_step_is_what_its_rows_ask_for(pair, make_plan_maker):
    maker = make_plan_maker(200)
    for row, sampling in enumerate(KINDS):
        maker.place(row, [5, 6, 7], num_blocks=0, **sampling)
    pair.step(maker)
    demands = pair.device_sampler.demands

    def kind(*rows):
        return demands.kind(np.array(rows, np.int32))

    assert kind(0) == SamplingKind()
    assert kind(0, 1) == SamplingKind(has_draws=True)
    assert kind(2) == SamplingKind(has_draws=True, has_filters=True, has_logprobs=True)
    assert kind(3) == SamplingKind(has_changes=True, has_logprobs=True)
    assert kind(4, 0) == SamplingKind(has_draws=True, has_changes=True, has_penalties=True)
    assert [is_recordable(demands, row) for row in range(9)] == [True] * 6 + [False] * 3


def test_min_tokens_are_a_matter_of_the_first_ones(pair, make_plan_maker):
    maker = make_plan_maker(200)
    maker.place(2, [5, 6, 7], num_blocks=0, min_tokens=4, stop_token_ids=(9,))
    maker.place(3, [5, 6, 7], num_blocks=0, min_tokens=4, stop_token_ids=(9,), bad_token_ids=((8,),))
    maker.place(4, [5, 6, 7], num_blocks=0, min_tokens=4)
    pair.step(maker)
    demands = pair.device_sampler.demands
    assert [is_recordable(demands, 2, position) for position in (3, 6, 7, 40)] == [False, False, True, True]
    assert not is_recordable(demands, 3, 40)
    assert is_recordable(demands, 4, 3)


def test_padding_and_bfloat16_logits_in_a_launch(pair, make_plan_maker):
    """As a graph of four places holds it: two rows, then padding, whose logits are anything."""
    maker = make_plan_maker(200)
    maker.place(1, [5, 6], num_blocks=0, temperature=0.8, seed=3)
    maker.place(0, [5, 6, 8], num_blocks=0)
    inputs, _, _ = pair.step(maker)
    sampler = pair.device_sampler
    logits = torch.from_numpy(pair.rng.normal(0, 3, (4, VOCAB)).astype(np.float32)).to(torch.bfloat16)
    logits[2:] = torch.nan
    rows = torch.tensor([1, 0, MAX_ROWS, MAX_ROWS], dtype=torch.int32, device=DEVICE)
    positions = torch.tensor([1, 2, 0, 0], device=DEVICE)
    sampler.outputs.tokens.fill_(-7)
    sampler.warm_up(logits.to(DEVICE))
    assert (sampler.outputs.tokens == -7).all()
    kind = sampler.demands.kind(inputs.sample_rows)
    sampler.launch(logits.to(DEVICE), rows, positions, kind)
    hidden = torch.zeros(5, VOCAB)
    hidden[inputs.last_tokens] = logits[:2].float()
    expected = pair.torch_sampler.sample(hidden, inputs)
    assert sampler.outputs.tokens[:4].tolist() == [*expected.token_ids.tolist(), -7, -7]
    assert sampler.num_bytes > 2 * MAX_ROWS * VOCAB * 4


def test_logprobs_are_read_as_they_were_asked_for_when_another_request_has_the_row(pair, make_plan_maker):
    maker = make_plan_maker(200)
    maker.place(3, [5, 6], num_blocks=0, logprobs=3)
    inputs, expected, _ = pair.step(maker)
    sampler = pair.device_sampler
    read = sampler.logprob_reader(inputs.sample_rows)
    outputs = sampler.outputs.everything.cpu().numpy().copy()
    maker.remove(3)
    maker.place(3, [5, 6, 7], num_blocks=0, temperature=1.0)
    pair.computed.clear()
    pair.step(maker)
    assert read(outputs)["logprob_rows"] == expected.logprobs["logprob_rows"]
    np.testing.assert_allclose(
        np.frombuffer(read(outputs)["top_logprobs"], np.float32),
        np.frombuffer(expected.logprobs["top_logprobs"], np.float32),
        rtol=1e-5,
        atol=1e-5,
    )
