"""Log-probabilities of prompts against transformers' log_softmax, whatever the chunks and whoever is in the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.execution.null_runner import NullRunner
from callboard.tests.execution.host_forward import both_samplers

VOCAB = 101


def pieces_of(result):
    """{(run, position): (logprob, rank, top ids, top logprobs)}"""
    part = result.prompt_logprobs
    if part is None:
        return {}
    runs, starts = np.frombuffer(part.runs, np.int64), np.frombuffer(part.starts, np.int32)
    counts, logprobs = np.frombuffer(part.counts, np.int32), np.frombuffer(part.logprobs, np.float32)
    num_tokens = logprobs.size
    top_ids = np.frombuffer(part.top_ids, np.int32).reshape(num_tokens, -1)
    top_logprobs = np.frombuffer(part.top_logprobs, np.float32).reshape(num_tokens, -1)
    ranks = np.frombuffer(part.ranks, np.int32)
    assert (starts >= 1).all() and (counts >= 1).all() and counts.sum() == num_tokens == ranks.size
    found, index = {}, 0
    for run, start, count in zip(runs.tolist(), starts.tolist(), counts.tolist(), strict=True):
        for position in range(start, start + count):
            assert (run, position) not in found
            found[run, position] = (logprobs[index], ranks[index], top_ids[index], top_logprobs[index])
            index += 1
    return found


@pytest.fixture(scope="module")
def expected(llama):
    """Log-probabilities at every position of a prompt: [length - 1, vocab] for its tokens but the first."""

    @torch.inference_mode()
    def logprobs(prompt):
        return llama(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1).numpy()

    return logprobs


def check(found, run, prompt, num_top, values):
    """All tokens of the prompt but the first, and nothing else of this run."""
    assert sorted(position for of_run, position in found if of_run == run) == list(range(1, len(prompt)))
    for position in range(1, len(prompt)):
        logprob, rank, top_ids, top_logprobs = found[run, position]
        row, token = values[position - 1], prompt[position]
        assert logprob == pytest.approx(row[token], abs=1e-4)
        assert (row > row[token] + 1e-4).sum() < rank <= (row > row[token] - 1e-4).sum() + 1
        best = np.argsort(-row, kind="stable")[:num_top]
        np.testing.assert_allclose(top_logprobs[:num_top], row[best], atol=1e-4)
        np.testing.assert_allclose(row[top_ids[:num_top]], row[best], atol=1e-4)


@both_samplers
@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 16, 40])
@pytest.mark.parametrize("prompt_logits", [1, 5 * VOCAB, 1 << 21])
def test_every_chunking(make_runner, plan_maker, expected, make_prompt, monkeypatch, chunk, prompt_logits):
    monkeypatch.setattr("callboard.execution.prompt_logprobs.PROMPT_LOGITS", prompt_logits)
    monkeypatch.setattr("callboard.execution.host_sampler.PIECE_LOGITS", prompt_logits)
    prompt, runner, found = make_prompt(1, 23), make_runner(), {}
    plan_maker.place(2, prompt, num_blocks=0, prompt_logprobs=4)
    for start in range(0, 23, chunk):
        num_tokens = min(chunk, 23 - start)
        found |= pieces_of(runner.run(plan_maker.plan([(2, start, num_tokens, start + num_tokens == 23)])))
    assert pieces_of(runner.run(plan_maker.plan([(2, 23, 1, True)]))) == {}
    check(found, plan_maker.rows[2].run, prompt, 4, expected(prompt))


@both_samplers
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_chunks_and_batch_mates(make_runner, make_plan_maker, expected, make_prompt, data):
    runner, maker, found = make_runner(), make_plan_maker(64), {}
    num_rows = data.draw(st.integers(1, 4))
    prompts = [make_prompt(600 + row, data.draw(st.integers(1, 25))) for row in range(num_rows)]
    asks = [data.draw(st.sampled_from([None, 0, 1, 5, VOCAB])) for _ in prompts]
    for row, (prompt, num_top) in enumerate(zip(prompts, asks, strict=True)):
        # bias and masks are for what is sampled: the log-probabilities of a prompt are raw
        maker.place(row, prompt, num_blocks=0, prompt_logprobs=num_top, logit_bias=((3, 50.0),), temperature=0.9)
    computed = [0] * num_rows
    while any(done < len(prompt) for done, prompt in zip(computed, prompts, strict=True)):
        scheduled = []
        for row, prompt in enumerate(prompts):
            left = len(prompt) - computed[row]
            if num_tokens := data.draw(st.integers(0, left)) if left > 1 else left:
                computed[row] += num_tokens
                scheduled.append((row, computed[row] - num_tokens, num_tokens, computed[row] == len(prompt)))
        new = pieces_of(runner.run(maker.plan(scheduled)))
        assert not new.keys() & found.keys()
        found |= new
    runs = [maker.rows[row].run for row in range(num_rows)]
    assert {run for run, _ in found} <= {run for run, num_top in zip(runs, asks, strict=True) if num_top is not None}
    for run, prompt, num_top in zip(runs, prompts, asks, strict=True):
        if num_top is not None:
            check(found, run, prompt, num_top, expected(prompt))


@both_samplers
def test_output_tokens_of_a_preempted_row_have_none(make_runner, plan_maker, expected, make_prompt):
    prompt, runner = make_prompt(5, 9), make_runner()
    plan_maker.place(0, [*prompt, 3, 4, 5], num_prompt_tokens=9, prompt_logprobs=2)
    found = pieces_of(runner.run(plan_maker.plan([(0, 0, 12, True)])))
    check(found, plan_maker.rows[0].run, prompt, 2, expected(prompt))


@both_samplers
def test_a_prompt_of_one_token_has_none(make_runner, plan_maker):
    plan_maker.place(0, [5], prompt_logprobs=2)
    assert make_runner().run(plan_maker.plan([(0, 0, 1, True)])).prompt_logprobs is None


def test_the_null_device_has_entries_for_every_token(make_plan_maker):
    """Each token is the most likely in its place with probability 1/2, others follow, all distinct."""
    visible = [i for i in range(VOCAB) if i not in (0, 2, 7)]
    runner = NullRunner(
        visible_ids=np.array(visible, np.int32), eos_token_id=2, num_blocks=64, block_size=4, max_num_seqs=8,
        max_model_len=120,
    )  # fmt: skip
    maker, prompts, found = make_plan_maker(64), [[0, 2, 7, 100, 99, 1, 50], [3, 4, 100]], {}
    for row, (prompt, num_top) in enumerate(zip(prompts, (20, 0), strict=True)):
        maker.place(row, prompt, prompt_logprobs=num_top)
    found |= pieces_of(runner.run(maker.plan([(0, 0, 4, False), (1, 0, 3, True)])))
    found |= pieces_of(runner.run(maker.plan([(0, 4, 3, True), (1, 3, 1, True)])))
    for row, prompt in enumerate(prompts):
        run = maker.rows[row].run
        assert sorted(position for of_run, position in found if of_run == run) == list(range(1, len(prompt)))
        for position in range(1, len(prompt)):
            logprob, rank, top_ids, top_logprobs = found[run, position]
            assert (logprob, rank) == (pytest.approx(np.log(0.5)), 1)
            if row == 0:
                assert top_ids[0] == prompt[position]
                assert len(set(top_ids.tolist())) == 20
                assert set(top_ids[1:].tolist()) <= set(visible)
                assert top_logprobs[0] == logprob and (np.diff(top_logprobs) < 0).all()
