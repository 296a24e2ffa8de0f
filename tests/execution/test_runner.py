"""The runner against transformers' full forward pass: whatever way the tokens are cut into steps, the same answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from callboard.errors import ProtocolViolation


def sampled(result):
    return np.frombuffer(result.token_ids, np.int32).tolist()


def decode(runner, maker, lengths, num_steps):
    """Decode every row of {row: number of known tokens}; returns {row: tokens}."""
    tokens = {row: [] for row in lengths}
    for step in range(num_steps):
        result = runner.run(maker.plan([(row, length + step, 1, True) for row, length in lengths.items()]))
        for row, token in zip(lengths, sampled(result), strict=True):
            tokens[row].append(token)
    return tokens


@pytest.mark.parametrize("chunk", [1, 3, 16, 37])
def test_one_row_in_chunks(make_runner, plan_maker, greedy, make_prompt, chunk):
    prompt = make_prompt(1, 37)
    runner = make_runner()
    plan_maker.place(2, prompt, num_blocks=0)
    tokens = []
    for start in range(0, 37, chunk):
        num_tokens = min(chunk, 37 - start)
        tokens += sampled(runner.run(plan_maker.plan([(2, start, num_tokens, start + num_tokens == 37)])))
    tokens += decode(runner, plan_maker, {2: 37}, 11)[2][0:]
    # The first decode step recomputes nothing: its input is the token sampled by the last chunk.
    assert tokens == greedy(prompt, 12)


def test_mixed_batch_of_decodes_chunks_and_whole_prompts(make_runner, plan_maker, greedy, make_prompt):
    prompts = {row: make_prompt(10 + row, length) for row, length in enumerate([5, 1, 40, 23, 9, 30])}
    runner = make_runner()
    got = {row: [] for row in prompts}

    def run(scheduled):
        rows = [s[0] for s in scheduled if s[3]]
        for row, token in zip(rows, sampled(runner.run(plan_maker.plan(scheduled))), strict=True):
            got[row].append(token)

    for row in (0, 1, 2):
        plan_maker.place(row, prompts[row])
    run([(2, 0, 17, False), (0, 0, 5, True), (1, 0, 1, True)])
    for row in (3, 4, 5):
        plan_maker.place(row, prompts[row])
    run([(0, 5, 1, True), (4, 0, 9, True), (2, 17, 20, False), (1, 1, 1, True), (5, 0, 30, True), (3, 0, 8, False)])
    run([(3, 8, 15, True), (2, 37, 3, True), (5, 30, 1, True), (0, 6, 1, True), (4, 9, 1, True), (1, 2, 1, True)])
    for _ in range(4):
        run([(row, len(prompts[row]) + len(got[row]) - 1, 1, True) for row in (5, 0, 3, 1, 4, 2)])
    assert got == {row: greedy(prompt, len(got[row])) for row, prompt in prompts.items()}


def test_prefix_hits_share_blocks_also_within_one_step(make_runner, plan_maker, greedy, make_prompt):
    prefix = make_prompt(3, 16)
    first, second, third = prefix + make_prompt(4, 5), prefix + make_prompt(5, 9), prefix + make_prompt(6, 1)
    runner = make_runner()
    plan_maker.place(0, first)
    blocks = plan_maker.rows[0].blocks[:4]
    got = {0: sampled(runner.run(plan_maker.plan([(0, 0, 21, True)])))}
    plan_maker.place(1, second, shared_blocks=blocks)
    plan_maker.place(2, third, shared_blocks=blocks)
    result = runner.run(plan_maker.plan([(1, 16, 9, True), (2, 16, 1, True), (0, 21, 1, True)]))
    for row, token in zip((1, 2, 0), sampled(result), strict=True):
        got.setdefault(row, []).append(token)
    more = decode(runner, plan_maker, {0: 22, 1: 25, 2: 17}, 5)
    got = {row: got[row] + more[row] for row in got}
    assert got == {0: greedy(first, 7), 1: greedy(second, 6), 2: greedy(third, 6)}


def test_blocks_written_and_read_through_a_hit_in_the_same_step(make_runner, plan_maker, greedy, make_prompt):
    prompt = make_prompt(7, 14)
    runner = make_runner()
    plan_maker.place(0, prompt)
    plan_maker.place(1, prompt, shared_blocks=plan_maker.rows[0].blocks[:3])
    assert sampled(runner.run(plan_maker.plan([(0, 0, 14, True), (1, 12, 2, True)]))) == greedy(prompt, 1) * 2


def test_preempted_row_is_recomputed_elsewhere(make_runner, plan_maker, greedy, make_prompt):
    prompt, other = make_prompt(8, 13), make_prompt(9, 6)
    runner = make_runner()
    plan_maker.place(0, prompt)
    plan_maker.place(1, other)
    got = sampled(runner.run(plan_maker.plan([(0, 0, 13, True), (1, 0, 6, True)])))[:1]
    got += decode(runner, plan_maker, {0: 13}, 4)[0]
    plan_maker.remove(0)
    other_tokens = decode(runner, plan_maker, {1: 6}, 8)[1]
    plan_maker.place(5, prompt + got, num_prompt_tokens=13)
    got += sampled(runner.run(plan_maker.plan([(5, 0, 10, False), (1, 14, 1, True)])))[:0]
    got += sampled(runner.run(plan_maker.plan([(5, 10, 8, True)])))
    got += decode(runner, plan_maker, {5: 18}, 3)[5]
    assert got == greedy(prompt, 9)
    assert other_tokens == greedy(other, 9)[1:]


def test_rows_and_blocks_are_used_again(make_runner, make_plan_maker, greedy, make_prompt):
    runner, maker = make_runner(num_blocks=8, max_num_seqs=1), make_plan_maker(num_blocks=8)
    for seed, length in [(20, 25), (21, 3), (22, 29)]:
        prompt = make_prompt(seed, length)
        if 0 in maker.rows:
            maker.remove(0)
        maker.place(0, prompt)
        got = sampled(runner.run(maker.plan([(0, 0, length, True)])))
        got += decode(runner, maker, {0: length}, 2)[0]
        assert got == greedy(prompt, 3)


@pytest.mark.parametrize("depth", [2, 3])
def test_plans_made_before_the_token_is_known(make_runner, plan_maker, greedy, make_prompt, depth):
    """All plans of a window are made first and run afterwards, as with `depth` steps in flight."""
    prompts = [make_prompt(30, 11), make_prompt(31, 2)]
    runner = make_runner()
    for row, prompt in enumerate(prompts):
        plan_maker.place(row, prompt)
    plans = [plan_maker.plan([(row, 0, len(prompt), True) for row, prompt in enumerate(prompts)])]
    got = [[], []]
    for step in range(9):
        plans.append(plan_maker.plan([(row, len(prompt) + step, 1, True) for row, prompt in enumerate(prompts)]))
        if len(plans) == depth:
            for plan in plans:
                for row, token in enumerate(sampled(runner.run(plan))):
                    got[row].append(token)
            plans = []
    assert got == [greedy(prompt, len(got[0])) for prompt in prompts]
    assert len(got[0]) >= 8


def test_result_names_runs_and_positions_in_plan_order(make_runner, plan_maker, make_prompt, paged_llama):
    model = paged_llama()
    runner = make_runner(model=model)
    for row in range(3):
        plan_maker.place(row, make_prompt(40 + row, 6 + row))
    result = runner.run(plan_maker.plan([(2, 0, 8, True), (0, 0, 4, False), (1, 0, 7, True)]))
    runs = {row: placed.run for row, placed in plan_maker.rows.items()}
    assert (result.epoch, result.step) == (3, 1)
    assert np.frombuffer(result.runs, np.int64).tolist() == [runs[2], runs[1]]
    assert np.frombuffer(result.positions, np.int32).tolist() == [8, 7]
    assert len(sampled(result)) == 2
    assert result.start_ns <= result.end_ns
    assert result.logprob_rows == result.logprobs == result.top_ids == result.top_logprobs == b""
    assert model.num_logit_rows == [2]


def test_plan_of_removals_only(make_runner, plan_maker, make_prompt, paged_llama):
    model = paged_llama()
    runner = make_runner(model=model)
    plan_maker.place(0, make_prompt(50, 6))
    assert runner.run(plan_maker.plan([(0, 0, 5, False)])).token_ids == b""
    plan_maker.remove(0)
    result = runner.run(plan_maker.plan([]))
    assert (result.runs, result.positions, result.token_ids) == (b"", b"", b"")
    assert model.num_logit_rows == []


def test_raw_logprobs_equal_transformers(make_runner, plan_maker, make_prompt, llama):
    prompts = {row: make_prompt(60 + row, 9 + row) for row in range(3)}
    runner = make_runner()
    plan_maker.place(0, prompts[0], logprobs=0, temperature=0.7, seed=5)
    plan_maker.place(1, prompts[1])
    plan_maker.place(2, prompts[2], logprobs=4)
    result = runner.run(plan_maker.plan([(row, 0, 9 + row, True) for row in range(3)]))
    assert np.frombuffer(result.logprob_rows, np.int32).tolist() == [0, 2]
    tokens, logprobs = sampled(result), np.frombuffer(result.logprobs, np.float32)
    top_ids = np.frombuffer(result.top_ids, np.int32).reshape(2, 4)
    top_logprobs = np.frombuffer(result.top_logprobs, np.float32).reshape(2, 4)
    for i, row in enumerate((0, 2)):
        with torch.inference_mode():
            expected = llama(torch.tensor([prompts[row]])).logits[0, -1].log_softmax(-1)
        assert logprobs[i] == pytest.approx(float(expected[tokens[row]]), abs=1e-4)
        best = expected.topk(4)
        assert top_ids[i].tolist() == best.indices.tolist()
        np.testing.assert_allclose(top_logprobs[i], best.values.numpy(), atol=1e-4)


def test_sampled_tokens_do_not_depend_on_batch_chunks_or_row(make_runner, make_plan_maker, make_prompt):
    prompt = make_prompt(70, 12)
    settings = {"temperature": 1.3, "top_p": 0.95, "seed": 99}

    def answer(row, others, chunk):
        runner, maker = make_runner(), make_plan_maker(64, seed=row)
        maker.place(row, prompt, choice=1, **settings)
        for other in others:
            maker.place(other, make_prompt(other, 7), temperature=0.5 * other, seed=other, top_k=3)
        tokens = []
        for start in range(0, 12, chunk):
            end = min(12, start + chunk)
            scheduled = [(other, 0, 7, True) for other in others] if end == 12 else []
            index = len(scheduled)
            tokens += sampled(runner.run(maker.plan([*scheduled, (row, start, end - start, end == 12)])))[index:]
        for step in range(6):
            scheduled = [(row, 12 + step, 1, True), *[(other, 7 + step, 1, True) for other in others]]
            tokens += sampled(runner.run(maker.plan(scheduled)))[:1]
        return tokens

    alone = answer(0, [], 12)
    assert len(set(alone)) > 1
    assert answer(6, [1, 2, 3], 5) == alone
    assert answer(3, [0], 1) == alone


def test_warm_up_leaves_an_empty_batch(make_runner, plan_maker, greedy, make_prompt):
    runner = make_runner()
    runner.warm_up()
    prompt = make_prompt(80, 10)
    plan_maker.place(0, prompt)
    assert sampled(runner.run(plan_maker.plan([(0, 0, 10, True)]))) == greedy(prompt, 1)


@pytest.mark.parametrize("max_model_len", [1, 2, 3, 4])
def test_warm_up_of_the_smallest_batches(make_runner, max_model_len):
    make_runner(num_blocks=1, max_num_seqs=1, max_model_len=max_model_len).warm_up()


def test_bfloat16(llama, make_runner, make_plan_maker, paged_llama, make_prompt):
    import copy

    model = copy.deepcopy(llama).to(torch.bfloat16)
    runner = make_runner(model=paged_llama(model, torch.bfloat16), kv_dtype=torch.bfloat16)
    maker = make_plan_maker(64)
    prompts = {row: make_prompt(90 + row, length) for row, length in enumerate([6, 19, 11])}
    for row, prompt in prompts.items():
        maker.place(row, prompt, logprobs=VOCAB)
    result = runner.run(maker.plan([(row, 0, len(prompt), True) for row, prompt in prompts.items()]))
    known = {row: [*prompts[row], token] for row, token in enumerate(sampled(result))}
    result = runner.run(maker.plan([(row, len(prompt), 1, True) for row, prompt in prompts.items()]))
    ids = np.frombuffer(result.top_ids, np.int32).reshape(3, VOCAB)
    values = np.frombuffer(result.top_logprobs, np.float32).reshape(3, VOCAB)
    for row, tokens in known.items():
        with torch.inference_mode():
            expected = model(torch.tensor([tokens])).logits[0, -1].float().log_softmax(-1).numpy()
        got = np.empty(VOCAB, np.float32)
        got[ids[row]] = values[row]
        assert np.abs(got - expected).mean() < 0.15  # logits of this model spread over tens, bfloat16 has 8 bits


VOCAB = 101


def test_unknown_run_is_a_protocol_violation(make_runner, plan_maker, make_prompt):
    runner = make_runner()
    plan_maker.place(0, make_prompt(1, 5))
    plan_maker.rows[0].run += 1
    with pytest.raises(ProtocolViolation, match="names a run that the row does not hold"):
        runner.run(plan_maker.plan([(0, 0, 5, True)]))
