"""What a new row tells the worker of its request, and how much of a plan it takes."""

from __future__ import annotations

import msgspec
import pytest

from callboard.mailbox.messages.sampling import RepetitionDetection, SamplingParams
from callboard.scheduling.row_sampling import row_sampling_of
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import make_admit, make_limits

EVERYTHING = SamplingParams(
    seed=7,
    temperature=0.5,
    max_tokens=9,
    stop=("x" * 1000,),
    logit_bias=((1, 2.0), (3, -4.0)),
    allowed_token_ids=(1, 3, 5),
    bad_words=("y" * 1000,),
    bad_token_ids=((1,), (2, 3)),
    min_tokens=2,
    stop_token_ids=(6, 0),
    prompt_logprobs=3,
    repetition_detection=RepetitionDetection(4),
)


def test_a_worker_gets_everything_but_texts_and_repetition() -> None:
    row = row_sampling_of(EVERYTHING, (0, 8))
    assert msgspec.structs.asdict(row) == msgspec.structs.asdict(EVERYTHING) | {
        "stop": (),
        "bad_words": (),
        "repetition_detection": None,
        "stop_token_ids": (0, 8, 6),
    }


@pytest.mark.parametrize(
    ("changes", "stop_token_ids"),
    [
        ({"min_tokens": 0}, ()),
        ({"min_tokens": 1}, (0, 8, 6)),
        ({"min_tokens": 1, "ignore_eos": True}, (6, 0)),
        ({"min_tokens": 1, "stop_token_ids": ()}, (0, 8)),
        ({"min_tokens": 1, "stop_token_ids": (), "ignore_eos": True}, ()),
    ],
)
def test_what_may_not_be_sampled_early(changes: dict[str, object], stop_token_ids: tuple[int, ...]) -> None:
    assert row_sampling_of(msgspec.structs.replace(EVERYTHING, **changes), (0, 8)).stop_token_ids == stop_token_ids


def test_entries_count_as_four_tokens_each() -> None:
    """40 tokens and 2 + 3 + (1 + 1) + (2 + 1) + 3 entries are 92 tokens of a plan that carries 200: two rows."""
    engine = Engine(make_limits(pipeline_depth=3, max_plan_tokens=200))
    lists = {name: getattr(EVERYTHING, name) for name in ("logit_bias", "allowed_token_ids", "bad_token_ids")}
    rules = {"min_tokens": 2, "stop_token_ids": (6, 7), "max_tokens": 3}
    engine.admit(*(make_admit(f"r{n}", [n] * 40, **lists, **rules) for n in range(1, 6)))
    assert [new.sampling.num_entries for new in engine.planned[0].new_rows] == [13, 13]
    assert [len(plan.new_rows) for plan in engine.planned] == [2, 2, 1]
    engine.run()
    engine.check_all_served()


def test_entries_that_do_not_travel_do_not_count() -> None:
    engine = Engine(make_limits(pipeline_depth=1, max_plan_tokens=100))
    engine.admit(*(make_admit(f"r{n}", [n] * 40, stop_token_ids=tuple(range(10, 60))) for n in (1, 2)))
    assert [len(plan.new_rows) for plan in engine.planned] == [2]


def test_a_row_larger_than_the_bound_goes_alone() -> None:
    engine = Engine(make_limits(pipeline_depth=2, max_plan_tokens=100))
    bias = tuple((token, 1.0) for token in range(30))
    engine.scheduler.step(0, [])
    first = [make_admit(f"r{n}", [n] * 4, logit_bias=bias, max_tokens=2) for n in (1, 2)]
    engine.admits |= {(admit.request_id, 0): admit for admit in first}
    plans = [engine.scheduler.step(0, first), engine.scheduler.step(0, ())]
    assert [[new.request_id for new in plan.new_rows] for plan in plans if plan is not None] == [["r1"], ["r2"]]
