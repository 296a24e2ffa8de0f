"""The null device against a second writing of its rule, and its refusals of plans that a model would compute."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.bench.null_answers import NullDevice
from callboard.errors import ProtocolViolation
from callboard.execution.null_runner import NullRunner
from callboard.execution.pending_step import HeldStep
from callboard.tests.execution.mask_board import MaskBoard

BLOCK_SIZE = 4  # of the plan maker
EOS = 2
VISIBLE = [i for i in range(101) if i not in (0, EOS, 7)]
DEVICE = NullDevice(VISIBLE, EOS)


def make(num_blocks: int = 64, *, visible=VISIBLE, eos: int | None = EOS, masks=None) -> NullRunner:
    return NullRunner(
        visible_ids=np.array(visible, np.int32),
        eos_token_id=eos,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=8,
        max_model_len=120,
        masks=masks,
        vocab_size=101,
    )


def sampled(result):
    return np.frombuffer(result.token_ids, np.int32).tolist()


def replaced(plan, **arrays):
    return msgspec.structs.replace(plan, **{name: np.array(a, np.int32).tobytes() for name, a in arrays.items()})


@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_tokens_do_not_depend_on_batch_chunks_blocks_or_preemption(make_plan_maker, data):
    runner, maker = make(), make_plan_maker(64, seed=data.draw(st.integers(0, 99)))
    requests = []
    for row in range(data.draw(st.integers(1, 4))):
        prompt = data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=30))
        seed = data.draw(st.none() | st.sampled_from([0, 1, 2**64 - 1]))
        requests.append((prompt, seed, data.draw(st.integers(0, 2)), []))
        sampling = {"temperature": 0.0} if seed is None else {"seed": seed, "temperature": 0.7}
        maker.place(row, prompt, num_blocks=0, choice=requests[-1][2], **sampling)
    computed = [0] * len(requests)
    for _ in range(12):
        scheduled = []
        for row, (prompt, _, _, tokens) in enumerate(requests):
            known = len(prompt) + len(tokens)
            num_tokens = data.draw(st.integers(0, known - computed[row]))
            if num_tokens:
                scheduled.append((row, computed[row], num_tokens, computed[row] + num_tokens == known))
                computed[row] += num_tokens
        rows = [row for row, _, _, samples in scheduled if samples]
        for row, token in zip(rows, sampled(runner.run(maker.plan(scheduled))), strict=True):
            requests[row][3].append(token)
        if data.draw(st.integers(0, 5)) == 0:
            prompt, seed, choice, tokens = requests[0]
            maker.remove(0)
            sampling = {"temperature": 0.0} if seed is None else {"seed": seed, "temperature": 0.7}
            maker.place(
                0, prompt + tokens, num_prompt_tokens=len(prompt), num_blocks=0, choice=choice, **sampling
            )  # preempted
            computed[0] = 0
    for prompt, seed, choice, tokens in requests:
        assert tokens == DEVICE.answer(prompt, len(tokens), seed=seed, choice=choice)


def test_seed_and_choice_count_only_above_temperature_0(make_plan_maker):
    def first_tokens(**sampling):
        runner, maker = make(), make_plan_maker(64)
        maker.place(0, [5, 6, 8], num_blocks=0, **sampling)
        tokens = sampled(runner.run(maker.plan([(0, 0, 3, True)])))
        return tokens + [sampled(runner.run(maker.plan([(0, 3 + i, 1, True)])))[0] for i in range(7)]

    assert first_tokens(seed=1) == first_tokens(seed=2) == first_tokens(seed=2, choice=1)
    answers = [first_tokens(seed=s, choice=c, temperature=1.0) for s, c in ((1, 0), (2, 0), (1, 1))]
    assert answers[0] != answers[1] != answers[2] != answers[0]


def test_ends_of_sequence_come_once_in_1024_draws_and_the_other_tokens_evenly():
    # 200,000 draws: the count of ends has mean 195.3 and deviation 14; 98 visible tokens, each 2,039 with deviation 45.
    tokens = [token for seed in range(2000) for token in DEVICE.answer([5], 100, seed=seed)]
    counts = np.bincount(tokens, minlength=101)
    assert 120 < counts[EOS] < 270
    assert counts[0] == counts[7] == 0
    assert counts[VISIBLE].min() > 1800 and counts[VISIBLE].max() < 2300


def test_a_model_without_an_end_never_ends(make_plan_maker):
    runner, maker = make(visible=[9], eos=None), make_plan_maker(64)
    for row in range(4):
        maker.place(row, [row])
    for position in range(40):
        assert sampled(runner.run(maker.plan([(row, position, 1, True) for row in range(4)]))) == [9] * 4


def test_cached_blocks_also_of_the_same_step(make_plan_maker):
    runner, maker = make(), make_plan_maker(64)
    prompt = list(range(10, 22))
    maker.place(0, prompt)
    maker.place(1, [*prompt[:8], 50], shared_blocks=maker.rows[0].blocks[:2])
    tokens = sampled(runner.run(maker.plan([(1, 8, 1, True), (0, 0, 12, True)])))
    assert tokens == [*DEVICE.answer([*prompt[:8], 50], 1), *DEVICE.answer(prompt, 1)]


def test_cached_blocks_of_other_tokens_are_refused(make_plan_maker):
    runner, maker = make(), make_plan_maker(64)
    maker.place(0, list(range(10, 22)))
    runner.run(maker.plan([(0, 0, 12, True)]))
    maker.place(1, [10, 11, 12, 13, 14, 99, 16, 17, 50], shared_blocks=maker.rows[0].blocks[:2])
    with pytest.raises(ProtocolViolation, match=r"behind 8 cached tokens.* position 5"):
        runner.run(maker.plan([(1, 8, 1, True)]))


def test_a_block_that_another_row_overwrites_changes_the_answer(make_plan_maker):
    runner, maker = make(), make_plan_maker(64)
    maker.place(0, [*range(10, 22), 70])
    runner.run(maker.plan([(0, 0, 12, False)]))
    maker.place(1, [60, 61, 62, 63], shared_blocks=maker.rows[0].blocks[:1])
    runner.run(maker.plan([(1, 0, 4, False)]))
    (token,) = sampled(runner.run(maker.plan([(0, 12, 1, True)])))
    assert token != DEVICE.answer([*range(10, 22), 70], 1)[0]


def test_plans_that_are_refused(make_plan_maker):
    def refuses(match, make_plans):
        runner, maker = make(num_blocks=8), make_plan_maker(8)
        with pytest.raises(ProtocolViolation, match=match):
            for plan in make_plans(maker):
                runner.run(plan)

    def gap(maker):
        maker.place(0, list(range(12)))
        yield maker.plan([(0, 0, 4, False)])
        yield maker.plan([(0, 5, 4, False)])

    def again(maker):
        maker.place(0, list(range(12)))
        yield maker.plan([(0, 0, 4, False)])
        yield maker.plan([(0, 3, 4, False)])

    def unknown_block(maker):
        maker.place(0, list(range(4)), num_blocks=0)
        yield replaced(maker.plan([(0, 0, 4, False)]), block_ids=[8])

    def negative_block(maker):
        maker.place(0, list(range(4)), num_blocks=0)
        yield replaced(maker.plan([(0, 0, 4, False)]), block_ids=[-1])

    def two_writers(maker):
        maker.place(0, list(range(4)))
        maker.place(1, list(range(4)), shared_blocks=maker.rows[0].blocks)
        yield maker.plan([(0, 0, 4, False), (1, 0, 4, False)])

    def unknown_token(maker):
        maker.place(0, list(range(4)))
        yield maker.plan([(0, 0, 5, False)])

    refuses("begins at position 5, it has computed the ones before 4", gap)
    refuses("begins at position 3, it has computed the ones before 4", again)
    refuses(r"block outside 0\.\.7: \[8\]", unknown_block)
    refuses(r"block outside 0\.\.7: \[-1\]", negative_block)
    refuses("two tokens of a step go into one slot", two_writers)
    refuses("a token that is not known", unknown_token)


def test_logprobs_are_of_distinct_tokens_and_at_most_0(make_plan_maker):
    runner, maker = make(), make_plan_maker(64)
    maker.place(0, [5, 6], logprobs=3)
    maker.place(1, [5, 6, 9])
    maker.place(2, [5], logprobs=0)
    result = runner.run(maker.plan([(0, 0, 2, True), (1, 0, 3, True), (2, 0, 1, True)]))
    assert np.frombuffer(result.logprob_rows, np.int32).tolist() == [0, 2]
    logprobs = np.frombuffer(result.logprobs, np.float32)
    top_ids = np.frombuffer(result.top_ids, np.int32).reshape(2, 3)
    top_logprobs = np.frombuffer(result.top_logprobs, np.float32).reshape(2, 3)
    assert (logprobs <= 0).all() and np.isfinite(logprobs).all()
    assert all(len(set(row)) == 3 for row in top_ids.tolist())
    assert top_ids[:, 0].tolist() == [sampled(result)[0], sampled(result)[2]]
    assert (np.diff(top_logprobs, axis=1) < 0).all() and (np.exp(top_logprobs).sum(axis=1) <= 1).all()
    assert (logprobs == top_logprobs[:, 0]).all()


def test_cleared_rows_can_be_placed_again(make_plan_maker):
    runner, maker = make(), make_plan_maker(64)
    maker.place(0, [5, 6, 8])
    runner.run(maker.plan([(0, 0, 3, True)]))
    runner.clear()
    maker.place(0, [5, 6, 9])
    assert sampled(runner.run(maker.plan([(0, 0, 3, True)]))) == DEVICE.answer([5, 6, 9], 1)


def test_no_torch_is_loaded():
    code = "import sys, callboard.execution.null_runner, callboard.actors.runners, callboard.actors.worker; "
    code += "print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout == "False\n"


@pytest.fixture
def board():
    board = MaskBoard(101)
    yield board
    board.region.close()


def test_a_mask_moves_the_token_to_the_next_one_that_it_allows(make_plan_maker, board):
    maker, prompts = make_plan_maker(64), [[row + 3, 50] for row in range(8)]
    runner = make(masks=board)
    for row, prompt in enumerate(prompts):
        maker.place(row, prompt, is_constrained=row != 4, logprobs=4, seed=row, temperature=1.0)
    allowed = [{0, 99}, {7}, set(VISIBLE), {EOS}, None, {40, 41, 42}, {100}, set()]
    for row, tokens in enumerate(allowed):
        if tokens is not None:
            board.write(row, maker.rows[row].run, 2, tokens)
    step = runner.launch(maker.plan([(row, 0, 2, True) for row in range(8)]))
    assert isinstance(step, HeldStep) and step.go_on()
    result = step.result()
    free = [DEVICE.answer(prompt, 1, seed=row)[0] for row, prompt in enumerate(prompts)]
    expected = [
        free[row] if tokens is None else min(tokens, key=lambda token: (token - free[row]) % 101)
        for row, tokens in enumerate(allowed[:7])
    ]
    assert sampled(result) == expected
    assert np.frombuffer(result.num_sampled, np.int32).tolist() == [1] * 7 + [0]
    assert np.frombuffer(result.logprob_rows, np.int32).tolist() == list(range(7))
    top_ids = np.frombuffer(result.top_ids, np.int32).reshape(7, 4)
    assert top_ids[:, 0].tolist() == expected
    assert all(len(set(row)) == 4 for row in top_ids.tolist())
    behind = runner.run(maker.plan([(row, 2, 1, True) for row in (4, 7)]))  # in flight when the last row was late
    assert np.frombuffer(behind.num_sampled, np.int32).tolist() == [1, 0]
    assert sampled(behind) == DEVICE.answer(prompts[4], 2, seed=4)[1:]


@pytest.mark.parametrize("num_behind", [0, 1, 2])
def test_a_late_row_computes_its_last_token_once_more(make_plan_maker, board, num_behind):
    """Behind steps in flight that went on with a token that nobody knows."""
    runner, maker = make(masks=board), make_plan_maker(64)
    maker.place(0, [5, 6], is_constrained=True)
    run, answer = maker.rows[0].run, DEVICE.answer([5, 6], 3)
    for round_ in range(2):
        for start in range(num_behind + 1):
            late = runner.run(maker.plan([(0, start + 1, 1, True) if round_ or start else (0, 0, 2, True)]))
            assert np.frombuffer(late.num_sampled, np.int32).tolist() == [0]
    for position, token in enumerate(answer, 2):
        board.write(0, run, position, range(101))
        assert sampled(runner.run(maker.plan([(0, position - 1, 1, True)]))) == [token]
    with pytest.raises(ProtocolViolation, match="begins at position 1"):
        runner.run(maker.plan([(0, 1, 1, True)]))


def test_steps_without_constrained_rows_do_not_look_for_masks(make_plan_maker, board):
    runner, maker = make(masks=board), make_plan_maker(64)
    maker.place(0, [5, 6])
    maker.place(1, [5, 6], is_constrained=True)
    assert sampled(runner.launch(maker.plan([(0, 0, 2, True), (1, 0, 1, False)])).result()) == DEVICE.answer([5, 6], 1)
    assert board.num_reads == 0
