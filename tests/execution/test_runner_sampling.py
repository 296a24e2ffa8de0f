"""Sampling parameters through the runner: greedy answers under bias, masks and penalties against a loop over
transformers' full forward pass and its processors; extreme temperatures and filters; processed log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from callboard.tests.execution.host_forward import both_samplers

pytestmark = both_samplers

VOCAB = 101


def sampled(result):
    return np.frombuffer(result.token_ids, np.int32).tolist()


class Answers:
    """Rows of a runner that decode until each has its tokens."""

    def __init__(self, runner, maker):
        self.runner, self.maker, self.known, self.results = runner, maker, {}, []

    def place(self, row, prompt, output=(), **sampling):
        self.maker.place(row, [*prompt, *output], num_prompt_tokens=len(prompt), num_blocks=0, **sampling)
        self.known[row] = [*prompt, *output]

    def run(self, num_steps, computed=None):
        """Each row computes what it has not yet, then a token a step."""
        computed = dict.fromkeys(self.known, 0) if computed is None else computed
        for _ in range(num_steps):
            scheduled = [(row, computed[row], len(known) - computed[row], True) for row, known in self.known.items()]
            self.results.append(self.runner.run(self.maker.plan(scheduled)))
            for row, token in zip(list(self.known), sampled(self.results[-1]), strict=True):
                computed[row] = len(self.known[row])
                self.known[row].append(token)
        return computed


@pytest.fixture
def answers(make_runner, make_plan_maker):
    return lambda seed=0: Answers(make_runner(), make_plan_maker(64, seed=seed))


@pytest.fixture(scope="module")
def model_logits(llama):
    @torch.inference_mode()
    def logits(tokens):
        return llama(torch.tensor([tokens])).logits[:, -1]

    return logits


def processors(num_prompt, sampling):
    """transformers' own, in the order of the documentation."""
    listed = LogitsProcessorList()
    if bias := sampling.get("logit_bias"):
        listed.append(SequenceBiasLogitsProcessor({(token,): value for token, value in bias}))
    if allowed := sampling.get("allowed_token_ids"):
        others = [[token] for token in range(VOCAB) if token not in allowed]
        listed.append(NoBadWordsLogitsProcessor(others, eos_token_id=None))
    if min_tokens := sampling.get("min_tokens"):
        listed.append(MinNewTokensLengthLogitsProcessor(num_prompt, min_tokens, list(sampling["stop_token_ids"])))
    if bad := sampling.get("bad_token_ids"):
        listed.append(NoBadWordsLogitsProcessor([list(ids) for ids in bad], eos_token_id=None))
    if repetition := sampling.get("repetition_penalty"):
        listed.append(RepetitionPenaltyLogitsProcessor(repetition))
    return listed


def expected_answer(model_logits, prompt, num_tokens, sampling):
    tokens, listed = list(prompt), processors(len(prompt), sampling)
    for _ in range(num_tokens):
        logits = listed(torch.tensor([tokens]), model_logits(tokens).clone())
        for token in set(tokens[len(prompt) :]):
            count = tokens[len(prompt) :].count(token)
            logits[0, token] -= sampling.get("frequency_penalty", 0) * count + sampling.get("presence_penalty", 0)
        tokens.append(int(logits.argmax()))
    return tokens


ALL_KINDS = [
    {},
    {"logit_bias": ((17, 40.0), (3, -40.0), (88, 12.5))},
    {"logit_bias": ((17, 60.0),), "frequency_penalty": 4.0},
    {"presence_penalty": 9.0},
    {"frequency_penalty": -2.0, "repetition_penalty": 1.4},
    {"repetition_penalty": 3.0, "presence_penalty": 1.0, "frequency_penalty": 1.5},
    {"allowed_token_ids": tuple(range(10, 40)), "repetition_penalty": 1.2},
    {"min_tokens": 6, "stop_token_ids": tuple(range(50)), "logit_bias": ((20, 100.0), (30, 90.0))},
]


def test_each_row_is_as_transformers_has_it_also_after_a_preemption(answers, model_logits, make_prompt):
    prompts = {row: make_prompt(200 + row, 5 + 3 * row) for row in range(8)}
    got = answers()
    for row, sampling in enumerate(ALL_KINDS):
        got.place(row, prompts[row], **sampling)
    computed = got.run(5)
    for row in (4, 5, 6, 7):  # these are placed anew, with their tokens so far
        output = got.known.pop(row)[len(prompts[row]) :]
        got.maker.remove(row)
        got.place(row, prompts[row], output, **ALL_KINDS[row])
        computed[row] = 0
    got.run(6, computed)
    for row, sampling in enumerate(ALL_KINDS):
        assert got.known[row] == expected_answer(model_logits, prompts[row], 11, sampling), sampling


def test_bad_sequences_never_come(answers, model_logits, make_prompt):
    prompt = make_prompt(300, 9)
    free = expected_answer(model_logits, prompt, 8, {})[9:]
    bad = ((free[0],), (free[2], free[3]), tuple(free[1:4]), (free[4], free[5]))
    got = answers()
    got.place(0, prompt, bad_token_ids=bad)
    got.place(1, prompt, bad_token_ids=((free[0], free[1], free[2]),))
    got.run(8)
    assert got.known[0] == expected_answer(model_logits, prompt, 8, {"bad_token_ids": bad})
    assert got.known[1][9:11] == free[:2]
    assert got.known[1][11] != free[2]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masks_that_leave_no_token_keep_to_what_is_allowed(answers, make_prompt, temperature):
    got = answers()
    contradiction = {"allowed_token_ids": (40, 41), "min_tokens": 4, "stop_token_ids": (40, 41, 42)}
    got.place(0, make_prompt(1, 6), temperature=temperature, logprobs=2, **contradiction)
    got.place(1, make_prompt(2, 6), temperature=temperature, bad_token_ids=tuple((i,) for i in range(VOCAB)))
    got.run(6)
    assert set(got.known[0][6:]) <= {40, 41}
    assert all(0 <= token < VOCAB for token in got.known[1])
    assert all(np.isfinite(np.frombuffer(result.logprobs, np.float32)).all() for result in got.results)


def test_rows_beside_are_not_changed(answers, make_prompt):
    def answer_of_plain_rows(*others):
        got = answers()
        got.place(3, make_prompt(5, 8), temperature=0.9, seed=4, logprobs=3)
        for row, sampling in enumerate(others):
            got.place(4 + row, make_prompt(row, 7), temperature=1.0, **sampling)
        got.run(6)
        tops = [np.frombuffer(result.top_logprobs, np.float32)[:3].tolist() for result in got.results]
        return got.known[3], tops

    assert answer_of_plain_rows({}, {}, {}) == answer_of_plain_rows(*ALL_KINDS[5:])


# M01, M03, M05, M07 of the reported faults


@pytest.mark.parametrize(
    "sampling",
    [
        *[{"temperature": t} for t in (1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 5e-324)],
        *[{"temperature": 1.0, "top_p": p} for p in (1e-4, 1e-9, 1e-12, 5e-324, 0.0)],
        {"temperature": 1.0, "min_p": 1.0},
        {"temperature": 5e-324, "top_p": 1e-12, "min_p": 0.5, "top_k": 3},
        {"temperature": 1e-12, "repetition_penalty": 1.0, "logit_bias": ((7, 0.0),)},
    ],
)
@pytest.mark.parametrize("processed", [False, True])
def test_the_smallest_parameters_are_greedy_with_finite_logprobs(answers, greedy, make_prompt, sampling, processed):
    prompt = make_prompt(400, 8)
    got = answers()
    got.place(0, prompt, seed=3, logprobs=1, processed_logprobs=processed, **sampling)
    got.run(8)
    assert got.known[0][8:] == greedy(prompt, 8)
    for result in got.results:
        assert np.isfinite(np.frombuffer(result.logprobs, np.float32)).all()
        assert np.isfinite(np.frombuffer(result.top_logprobs, np.float32)).all()


def test_forced_end_tokens_wait_for_min_tokens(answers, make_prompt):
    """Both ends are far above all other tokens: the first of them comes exactly when it may."""
    got = answers()
    got.place(0, make_prompt(7, 5), logit_bias=((50, 1000.0), (51, 500.0)), min_tokens=6, stop_token_ids=(50, 51))
    got.place(1, make_prompt(7, 5), logit_bias=((50, 1000.0), (51, 500.0)), min_tokens=6, stop_token_ids=(50,))
    got.run(9)
    assert not {50, 51} & set(got.known[0][5:11])
    assert got.known[0][11:] == [50] * 3
    assert got.known[1][5:] == [51] * 6 + [50] * 3


def processed_row(result, row=0):
    """All processed log-probabilities of one row by token id."""
    ids = np.frombuffer(result.top_ids, np.int32).reshape(-1, VOCAB)[row]
    values = np.empty(VOCAB, np.float32)
    values[ids] = np.frombuffer(result.top_logprobs, np.float32).reshape(-1, VOCAB)[row]
    return values


def test_penalties_move_the_odds_as_they_should(answers, model_logits, make_prompt):
    """Prompt of one token many times; five forced tokens b; then log-odds against a token that nothing names."""
    prompt, a, b = [9] * 8, 9, 60
    kinds = [{}, {"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 2.0}]
    got = answers()
    for row, sampling in enumerate(kinds):
        got.place(row, prompt, logprobs=VOCAB, processed_logprobs=True, logit_bias=((b, 1000.0),), **sampling)
    got.run(6)
    assert all(known[8:] == [b] * 6 for known in got.known.values())
    others = [token for token in range(VOCAB) if token not in (a, b)]
    for step, before in ((0, prompt), (5, prompt + [b] * 5)):
        raw = model_logits(before)[0].double().numpy()
        plain, frequency, presence, repetition = (processed_row(got.results[step], row) for row in range(4))
        odds = [values - values[others[0]] for values in (plain, frequency, presence, repetition)]
        for each in odds:  # between tokens that no penalty names nothing changes
            np.testing.assert_allclose(each[others], raw[others] - raw[others[0]], atol=1e-3)
        count = 5 if step else 0
        assert odds[1][b] - odds[0][b] == pytest.approx(-2.0 * count, abs=1e-3)
        assert odds[2][b] - odds[0][b] == pytest.approx(-2.0 if count else 0.0, abs=1e-3)
        assert odds[1][a] == pytest.approx(odds[0][a], abs=1e-3)  # the prompt is not output
        moved = raw[a] / 2 if raw[a] > 0 else raw[a] * 2
        assert odds[3][a] - odds[0][a] == pytest.approx(moved - raw[a], abs=1e-3)
        assert moved <= raw[a]


# Log-probabilities


def test_processed_logprobs_are_those_of_the_sampled_distribution(answers, model_logits, make_prompt):
    prompt = make_prompt(500, 10)
    sampling = {"logit_bias": ((5, 2.0),), "repetition_penalty": 1.3, "bad_token_ids": ((8,),)}
    filters = {"temperature": 0.8, "top_k": 12, "top_p": 0.97}
    got = answers()
    ask = {"logprobs": VOCAB, "processed_logprobs": True}
    got.place(0, prompt, seed=1, **ask, **sampling, **filters)
    got.place(1, prompt, **ask, **sampling)  # temperature 0: as if it were 1 and nothing filtered
    got.place(2, prompt, seed=1, logprobs=VOCAB, **sampling, **filters)
    got.place(3, prompt, logprobs=VOCAB)
    got.place(4, prompt, seed=2, temperature=1.5, **ask)
    got.run(1)
    result, tokens = got.results[0], sampled(got.results[0])
    raw = model_logits(prompt)
    changed = processors(len(prompt), sampling)(torch.tensor([prompt]), raw.clone())
    warpers = [TemperatureLogitsWarper(0.8), TopKLogitsWarper(12), TopPLogitsWarper(0.97)]
    warped = LogitsProcessorList(warpers)(torch.tensor([prompt]), changed.clone())
    expected = [warped, changed, raw, raw, raw / 1.5]
    logprobs = np.frombuffer(result.logprobs, np.float32)
    for row, logits in enumerate(expected):
        values = logits[0].log_softmax(-1).numpy()
        np.testing.assert_allclose(processed_row(result, row), values, atol=1e-4)
        assert logprobs[row] == pytest.approx(float(values[tokens[row]]), abs=1e-4)
    assert np.isinf(processed_row(result, 0)).sum() >= VOCAB - 12
    assert tokens[0] == tokens[2]


def test_a_mixed_step_in_pieces_gives_the_same(answers, make_prompt, monkeypatch):
    def run():
        got = answers()
        for row, sampling in enumerate(ALL_KINDS):
            filters = [{"temperature": 0.0}, {"temperature": 1.2}, {"temperature": 0.7, "top_p": 0.9}][row % 3]
            got.place(
                row, make_prompt(row, 6), seed=row, logprobs=row, processed_logprobs=row % 2 == 0, **sampling, **filters
            )
        got.run(4)
        return [(r.token_ids, r.logprob_rows, r.logprobs, r.top_ids, r.top_logprobs) for r in got.results]

    whole = run()
    for module in ("kernels.sampling", "execution.logit_changes"):
        monkeypatch.setattr(f"callboard.{module}.PIECE_LOGITS", 2 * VOCAB)
    assert run() == whole


def test_a_later_turn_of_a_session_draws_on_where_the_one_before_stopped(answers, make_prompt):
    """Its prompt holds 5 output tokens of an earlier turn: each token is that of a request with the same tokens before
    it and the same number of output tokens among them."""
    tokens = make_prompt(9, 18)
    run = answers()
    run.maker.place(0, tokens, num_prompt_tokens=18, num_blocks=0, first_output_index=5, temperature=1.5, seed=3)
    run.maker.place(1, tokens, num_prompt_tokens=13, num_blocks=0, temperature=1.5, seed=3)
    run.maker.place(2, tokens, num_prompt_tokens=18, num_blocks=0, temperature=1.5, seed=3)
    run.known = {row: list(tokens) for row in range(3)}
    run.run(8)
    assert run.known[0] == run.known[1] != run.known[2]
