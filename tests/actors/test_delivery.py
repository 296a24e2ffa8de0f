"""What users rely on: whatever happens and in whatever order, each stream gets exactly its answer and one end."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.errors import CallboardError
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.tests.actors.delivery_runs import (
    MAX_OUTPUT,
    MAX_PROMPT,
    REPETITION,
    STOPS,
    Case,
    Request,
    random_case,
    run,
)
from callboard.tests.actors.planted_faults import PLANTS, Plant

SAMPLING = st.builds(
    SamplingParams,
    seed=st.just(1),
    max_tokens=st.integers(1, MAX_OUTPUT),
    stop=st.lists(st.sampled_from(STOPS), max_size=2).map(tuple),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, None, 1]),
    min_tokens=st.sampled_from([0, 0, 2, 5]),
    stop_token_ids=st.sampled_from([(), (), (4,), (0, 6)]),
    include_stop_str_in_output=st.booleans(),
    prompt_logprobs=st.sampled_from([None, None, 2]),
    repetition_detection=st.sampled_from([None, None, REPETITION]),
)
REQUESTS = st.builds(
    Request,
    st.text("abc é", min_size=1, max_size=12).filter(lambda prompt: len(prompt.encode()) <= MAX_PROMPT),
    SAMPLING,
    frontend=st.integers(0, 1),
    num_choices=st.sampled_from([1, 1, 2]),
    returns_prompt=st.booleans(),
    raises_at=st.sampled_from([None] * 7 + [0, 3]),
    priority=st.integers(-1, 1),
)
CASES = st.builds(
    Case,
    requests=st.lists(REQUESTS, min_size=1, max_size=8).map(tuple),
    seed=st.integers(0, 1 << 32),
    num_acts=st.integers(0, 400),
    trouble=st.sampled_from([0, 0.01, 0.03, 0.1]),
    num_blocks=st.sampled_from([8, 10, 16, 40]),
    capacity=st.sampled_from([1, 2, 3, 1000]),
    max_queued_requests=st.sampled_from([0, 2, 1000, 1000]),
    num_frontends=st.integers(1, 2),
    num_deaths=st.integers(0, 3),
    num_stumbles=st.sampled_from([0, 0, 2]),
    turns_by_itself=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(CASES)
def test_every_stream_gets_exactly_its_answer(case: Case) -> None:
    run(case)


@pytest.mark.slow
def test_every_stream_gets_exactly_its_answer_whoever_dies() -> None:
    for seed in range(300):
        run(random_case(seed))


@pytest.mark.nightly
def test_every_stream_gets_exactly_its_answer_in_thousands_of_runs() -> None:
    for seed in range(300, 30_000):
        run(random_case(seed))


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_rule_left_out_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, CallboardError)):
        for seed in range(5000):
            run(random_case(seed))
