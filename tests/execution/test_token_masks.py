"""Constrained rows through the runner: their tokens under masks against transformers' full forward pass and
processors, the law of their draws, and rows whose masks are late."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from callboard.errors import ProtocolViolation
from callboard.execution.host_sampler import HostSampler
from callboard.execution.input_batch import InputBatch
from callboard.execution.pending_step import HeldStep
from callboard.execution.prepare_inputs import prepare_inputs
from callboard.execution.token_masks import TokenMasks
from callboard.execution.torch_forward import TorchForward
from callboard.execution.torch_sampler import TorchSampler
from callboard.tests.execution.host_forward import both_samplers
from callboard.tests.execution.mask_board import MaskBoard, MaskedAnswers, words_of
from callboard.tests.execution.test_runner_sampling import ALL_KINDS, VOCAB, processed_row, processors, sampled
from callboard.tests.kernels.sampling_laws import filtered_law, g_test, holds

pytestmark = both_samplers


def some_tokens(row, position):
    """1 to 12 of all, others at each place."""
    rng = np.random.default_rng(1000 * row + position)
    return set(rng.permutation(VOCAB)[: rng.integers(1, 13)].tolist())


@pytest.fixture
def board():
    board = MaskBoard(VOCAB)
    yield board
    board.region.close()


@pytest.fixture
def answers(make_runner, make_plan_maker, board):
    return lambda seed=0: MaskedAnswers(make_runner(masks=board), make_plan_maker(64, seed=seed), board)


@pytest.fixture(scope="module")
def model_logits(llama):
    @torch.inference_mode()
    def logits(tokens):
        return llama(torch.tensor([tokens])).logits[:, -1]

    return logits


SOFT = ("logit_bias", "repetition_penalty")


def expected_answer(model_logits, prompt, num_tokens, sampling, allowed_at, row):
    """transformers' processors, then the mask; without the bans among them where nothing would be left."""
    tokens = list(prompt)
    soft = {name: value for name, value in sampling.items() if name in SOFT}
    while len(tokens) < len(prompt) + num_tokens:
        allowed = sorted(allowed_at(row, len(tokens)))
        for wishes in (sampling, soft):
            logits = processors(len(prompt), wishes)(torch.tensor([tokens]), model_logits(tokens).clone())[0, allowed]
            if logits.max() > -torch.inf:
                break
        for place, token in enumerate(allowed):
            count = tokens[len(prompt) :].count(token)
            logits[place] -= sampling.get("frequency_penalty", 0) * count
            logits[place] -= sampling.get("presence_penalty", 0) * (count > 0)
        tokens.append(allowed[int(logits.argmax())])
    return tokens


def test_greedy_rows_are_as_transformers_has_them_under_masks_also_after_a_preemption(
    answers, model_logits, make_prompt
):
    prompts = {row: make_prompt(200 + row, 5 + 3 * row) for row in range(8)}
    got = answers()
    for row, sampling in enumerate(ALL_KINDS):
        got.place(row, prompts[row], allowed_at=some_tokens, **sampling)
    computed = got.run(5)
    for row in (0, 5, 7):
        output = got.known.pop(row)[len(prompts[row]) :]
        got.maker.remove(row)
        got.place(row, prompts[row], output, allowed_at=some_tokens, **ALL_KINDS[row])
        computed[row] = 0
    got.run(4, computed)
    for row, sampling in enumerate(ALL_KINDS):
        assert got.known[row] == expected_answer(model_logits, prompts[row], 9, sampling, some_tokens, row), sampling


DRAWS = [
    {"temperature": 1.5},
    {"temperature": 0.7, "top_k": 3},
    {"temperature": 1.0, "top_p": 0.3},
    {"temperature": 1.0, "min_p": 0.4},
    {"temperature": 5e-324, "top_k": 200, "top_p": 1e-9, "min_p": 1.0},
    {"temperature": 2.0, "top_k": 90, "top_p": 0.9999, "repetition_penalty": 1.7, "presence_penalty": 2.0},
    {"temperature": 1.2, "min_tokens": 9, "stop_token_ids": tuple(range(60)), "bad_token_ids": ((70,), (71, 72))},
    {"temperature": 1.0, "allowed_token_ids": tuple(range(40, 101)), "logit_bias": ((3, 100.0), (50, -100.0))},
]


@pytest.mark.parametrize("processed", [False, True])
def test_whatever_a_row_asks_for_its_tokens_are_allowed_and_finite(answers, make_prompt, processed):
    got = answers()
    for row, sampling in enumerate(DRAWS):
        got.place(
            row,
            make_prompt(row, 6),
            allowed_at=some_tokens,
            seed=row,
            logprobs=2,
            processed_logprobs=processed,
            **sampling,
        )
    got.run(9)
    for row in range(len(DRAWS)):
        for position, token in list(enumerate(got.known[row]))[6:]:
            assert token in some_tokens(row, position), DRAWS[row]
    for result in got.results:
        assert np.isfinite(np.frombuffer(result.logprobs, np.float32)).all()
        assert not np.isnan(np.frombuffer(result.top_logprobs, np.float32)).any()
        assert result.num_sampled == b""


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "ban",
    [
        {"min_tokens": 5, "stop_token_ids": (44, 45)},
        {"bad_token_ids": tuple((i,) for i in range(VOCAB))},
        {"bad_token_ids": ((44,), (45,))},
        {"allowed_token_ids": (1, 2)},
        {"allowed_token_ids": (1, 44, 45), "bad_token_ids": ((44,), (45,))},
        {"logit_bias": ((44, -np.inf), (45, -np.inf))},
        {"logit_bias": ((44, -100.0), (45, -100.0)), "repetition_penalty": 1e38, "temperature": 1e-12},
        {"logit_bias": ((3, np.inf), (44, -1e38), (45, -1e38)), "frequency_penalty": 3e38},
    ],
    ids=str,
)
def test_where_bans_and_mask_leave_nothing_the_mask_wins(answers, make_prompt, ban, temperature):
    got = answers()
    sampling = {"temperature": temperature, "logprobs": 1, "processed_logprobs": True} | ban
    got.place(0, [*make_prompt(3, 6), 44, 45], allowed_at=lambda row, position: {44, 45}, **sampling)
    got.place(1, make_prompt(4, 6), allowed_at=lambda row, position: {100}, **sampling)
    got.run(6)
    assert set(got.known[0][8:]) <= {44, 45}
    assert got.known[1][6:] == [100] * 6
    for result in got.results:
        assert np.isfinite(np.frombuffer(result.logprobs, np.float32)).all()


def test_raw_logprobs_are_the_models_own_and_processed_ones_are_masked(answers, model_logits, make_prompt):
    prompt, allowed = make_prompt(500, 10), {4, 17, 60, 99}
    got = answers()
    ask = {"logprobs": VOCAB, "seed": 1, "allowed_at": lambda row, position: allowed}
    got.place(0, prompt, **ask)
    got.place(1, prompt, processed_logprobs=True, **ask)
    got.place(2, prompt, temperature=0.8, logit_bias=((17, 3.0),), repetition_penalty=1.3, **ask)
    got.place(3, prompt, temperature=0.8, top_k=3, processed_logprobs=True, **ask)
    got.run(1)
    raw = model_logits(prompt)[0]
    masked = torch.full_like(raw, -torch.inf)
    masked[sorted(allowed)] = raw[sorted(allowed)]
    warm = masked / 0.8
    warm[warm < warm.topk(3).values[-1]] = -torch.inf
    tokens, logprobs = sampled(got.results[0]), np.frombuffer(got.results[0].logprobs, np.float32)
    for row, logits in enumerate((raw, masked, raw, warm)):
        values = logits.log_softmax(-1).numpy()
        np.testing.assert_allclose(processed_row(got.results[0], row), values, atol=1e-4)
        assert logprobs[row] == pytest.approx(float(values[tokens[row]]), abs=1e-4)
    assert tokens[0] == tokens[1] == int(masked.argmax())


# Rows that are late


def free(row, position):
    return None


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_late_row_yields_nothing_and_changes_nobody(answers, make_prompt, temperature):
    def run(allowed_at):
        got = answers()
        for row in range(6):
            got.place(
                row,
                make_prompt(row, 4 + row),
                allowed_at={1: some_tokens, 3: allowed_at, 4: allowed_at}.get(row),
                temperature=temperature,
                seed=row,
                logprobs=row,
                processed_logprobs=row % 2 == 1,
            )
        scheduled = [(row, 0, 4 + row, True) for row in range(6)]
        got.board.write(1, got.maker.rows[1].run, 5, some_tokens(1, 5))
        for row in (3, 4) if allowed_at is some_tokens else (4,):
            got.board.write(row, got.maker.rows[row].run, 4 + row, some_tokens(row, 4 + row))
        return got.runner.run(got.maker.plan(scheduled)), got

    late, got = run(free)
    assert np.frombuffer(late.num_sampled, np.int32).tolist() == [1, 1, 1, 0, 1, 1]
    # A plan that was in flight already goes on with a token that nobody knows; then the row is placed anew.
    behind = got.runner.run(got.maker.plan([(3, 7, 1, True), (0, 4, 1, True)]))
    assert np.frombuffer(behind.num_sampled, np.int32).tolist() == [0, 1]
    got.maker.remove(3)
    got.known, got.masks = {}, {}
    got.place(3, make_prompt(3, 7), allowed_at=some_tokens, temperature=temperature, seed=3)
    got.run(1)
    whole, _ = run(some_tokens)  # runs have the same numbers, so this comes last
    assert whole.num_sampled == b""
    assert got.known[3][7] == sampled(whole)[3]
    assert (late.runs, late.positions) == (whole.runs, whole.positions)
    kept = [0, 1, 2, 4, 5]
    assert sampled(late) == [sampled(whole)[row] for row in kept]
    assert np.frombuffer(late.logprob_rows, np.int32).tolist() == [0, 1, 2, 3, 4]
    for field, shape in (("logprobs", ()), ("top_ids", (5,)), ("top_logprobs", (5,))):
        ours, theirs = (np.frombuffer(getattr(result, field), np.int32) for result in (late, whole))
        assert ours.reshape(5, *shape).tolist() == theirs.reshape(6, *shape)[kept].tolist()


@pytest.mark.parametrize("num_behind", [0, 1, 2])
def test_a_late_row_goes_on_from_its_last_token(answers, model_logits, make_prompt, num_behind):
    """Behind steps in flight that went on with a token that nobody knows."""
    prompt, got = make_prompt(9, 6), answers()
    wishes = {"repetition_penalty": 3.0, "frequency_penalty": 4.0, "presence_penalty": 1.0}
    got.place(0, prompt, allowed_at=free, **wishes)
    for start in range(num_behind + 1):
        late = got.runner.run(got.maker.plan([(0, start + 5, 1, True) if start else (0, 0, 6, True)]))
        assert np.frombuffer(late.num_sampled, np.int32).tolist() == [0]
    got.masks[0] = lambda row, position: range(VOCAB)  # that token, too
    got.run(4, {0: 5})
    assert got.known[0] == expected_answer(model_logits, prompt, 4, wishes, got.masks[0], 0)


def test_all_rows_late(answers, make_prompt):
    got = answers()
    got.place(2, make_prompt(1, 5), allowed_at=free, logprobs=3)
    result = got.runner.run(got.maker.plan([(2, 0, 5, True)]))
    assert np.frombuffer(result.num_sampled, np.int32).tolist() == [0]
    assert result.token_ids == result.logprob_rows == result.logprobs == result.top_ids == b""
    assert np.frombuffer(result.positions, np.int32).tolist() == [5]


def test_a_mask_of_another_run_epoch_or_position_is_none_nor_is_one_that_allows_nothing(answers, make_prompt):
    got = answers()
    for row in range(4):
        got.place(row, make_prompt(1, 5), allowed_at=free)
    runs = [got.maker.rows[row].run for row in range(4)]
    got.board.write(0, runs[0] + 50, 5, {1})
    got.board.write(1, runs[1], 6, {1})
    got.board.write(2, runs[2], 5, set())
    got.board.region.write(3, 4, runs[3], 5, 5, words_of({1}, VOCAB))
    result = got.runner.run(got.maker.plan([(row, 0, 5, True) for row in range(4)]))
    assert np.frombuffer(result.num_sampled, np.int32).tolist() == [0] * 4


def test_a_mask_is_read_behind_the_forward_pass_when_the_step_goes_on(answers, make_prompt, monkeypatch):
    got = answers()
    got.place(0, make_prompt(1, 5), allowed_at=free)
    forward, log = got.runner.forward, []
    compute = forward.hidden_states

    def late_masks(inputs, batch):
        log.append("forward")
        hidden = compute(inputs, batch)
        assert not got.board.num_reads
        got.board.write(0, got.maker.rows[0].run, 5, {33})
        return hidden

    monkeypatch.setattr(forward, "hidden_states", late_masks)
    step = got.runner.launch(got.maker.plan([(0, 0, 5, True)]))
    assert isinstance(step, HeldStep) and step.is_held and not step.is_done()
    assert not log
    assert step.go_on() and step.go_on() and step.is_done() and not step.is_held
    assert log == ["forward"]
    assert sampled(step.result()) == [33]


def test_steps_without_constrained_rows_that_sample_read_nothing(answers, make_prompt):
    got = answers()
    got.runner.warm_up()
    got.place(0, make_prompt(1, 5), allowed_at=free)
    got.place(1, make_prompt(2, 5))
    steps = [got.runner.launch(got.maker.plan([(0, 0, 3, False), (1, 0, 5, True)]))]
    got.maker.remove(0)
    steps.append(got.runner.launch(got.maker.plan([(1, 5, 1, True)])))
    assert not any(isinstance(step, HeldStep) for step in steps)
    assert not got.runner.batch.has_constrained_rows
    assert got.board.num_reads == 0


def test_a_constrained_row_of_a_worker_without_masks_is_a_violation(make_runner, plan_maker):
    plan_maker.place(2, [5, 6], is_constrained=True)
    with pytest.raises(ProtocolViolation, match=r"row 2 .* was given no masks"):
        make_runner().launch(plan_maker.plan([(2, 0, 2, True)]))


# The law of draws

LOGITS = np.random.default_rng(3).permutation(np.linspace(-4, 3.3, 60)).astype(np.float32)
ALLOWED = [2, 3, 11, 19, 30, 31, 32, 33, 47, 58]
LAWS = [{}, {"temperature": 0.6, "top_k": 4}, {"temperature": 1.4, "top_p": 0.8}, {"min_p": 0.2}]


@pytest.mark.parametrize("sampling", LAWS, ids=str)
def test_draws_have_the_law_of_the_allowed_tokens(make_plan_maker, forward_kind, sampling):
    """A G-test of one token for each of many seeds."""
    num_rows, size = 250, LOGITS.size
    law = filtered_law({token: float(LOGITS[token]) for token in ALLOWED}, **sampling)

    def p_value(first_seed, num_samples):
        counts: Counter[int] = Counter()
        for first in range(first_seed, first_seed + num_samples, num_rows):
            batch, maker = InputBatch(num_rows, 8, 4), make_plan_maker(num_rows)
            for row in range(num_rows):
                maker.place(row, [5], is_constrained=True, **{"temperature": 1.0, "seed": first + row} | sampling)
            plan = maker.plan([(row, 0, 1, True) for row in range(num_rows)])
            batch.apply(plan)
            words = np.tile(words_of(ALLOWED, size), (num_rows, 1))
            masks = TokenMasks(np.arange(num_rows), words, np.zeros(num_rows, np.bool_))
            logits = np.tile(LOGITS, (num_rows, 1))
            inputs = prepare_inputs(batch, plan)
            if forward_kind is TorchForward:
                sampler = TorchSampler(torch.clone, batch, size, torch.device("cpu"))
                found = sampler.sample(torch.from_numpy(logits), inputs, masks)
            else:
                found = HostSampler(np.copy, batch, size).sample(logits, inputs, masks)
            counts.update(found.token_ids.tolist())
        return g_test(counts, law)

    assert holds(p_value, 2 * len(LAWS))
