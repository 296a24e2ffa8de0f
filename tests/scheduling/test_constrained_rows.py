"""What the grammar actor is told of the rows that draw under a grammar."""

from __future__ import annotations

from callboard.mailbox.messages.grammar import Advance, GrammarFailed, GrammarReady
from callboard.scheduling.events import GrammarGone
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import make_admit, make_limits


def _engine(**limits: object) -> Engine:
    engine = Engine(make_limits(pipeline_depth=1, **limits))
    engine.pump(GrammarReady("g"))
    return engine


def _rows(told: Advance | None) -> list[tuple[int, int, list[int], str]]:
    """(row, position, tokens, key of a run that is new)"""
    assert told is not None and told.epoch == 1
    rows = zip(told.rows, told.runs, told.positions, told.token_ids, strict=True)
    return [(row, position, token_ids, told.grammar_keys.get(run, "")) for row, run, position, token_ids in rows]


def test_a_new_row_is_told_then_each_of_its_tokens_then_its_end() -> None:
    engine = _engine()
    engine.admit(
        make_admit("free", [9, 9], max_tokens=3, ignore_eos=True),
        make_admit("bound", [1, 2, 3], max_tokens=3, ignore_eos=True, grammar_key="g"),
    )
    scheduler = engine.scheduler
    told = scheduler.advance_grammars()
    assert _rows(told) == [(1, 3, [], "g")] and told is not None and not told.ended
    assert scheduler.advance_grammars() is None, "nothing is told twice"
    engine.run_step()
    assert _rows(scheduler.advance_grammars()) == [(1, 3, engine.clients["bound", 0].token_ids, "")]
    engine.run_step()
    assert _rows(scheduler.advance_grammars()) == [(1, 4, engine.clients["bound", 0].token_ids[1:], "")]
    engine.run_step()
    end = scheduler.advance_grammars()
    assert end is not None and end.ended == told.runs and not end.runs
    assert scheduler.advance_grammars() is None


def test_tokens_that_were_not_told_yet_are_told_together() -> None:
    engine = _engine()
    engine.admit(make_admit("bound", [1, 2, 3], max_tokens=5, ignore_eos=True, grammar_key="g"))
    engine.scheduler.advance_grammars()
    engine.run_step()
    engine.run_step()
    assert _rows(engine.scheduler.advance_grammars()) == [(0, 3, engine.clients["bound", 0].token_ids, "")]


def test_a_row_that_ended_before_it_was_told_is_never_told() -> None:
    engine = _engine()
    engine.admit(make_admit("bound", [1, 2, 3], max_tokens=1, ignore_eos=True, grammar_key="g"))
    engine.run_step()
    assert engine.scheduler.advance_grammars() is None


def test_a_death_of_the_worker_makes_a_new_run_with_all_output() -> None:
    engine = _engine()
    engine.admit(make_admit("bound", [1, 2, 3], max_tokens=5, ignore_eos=True, grammar_key="g"))
    first = engine.scheduler.advance_grammars()
    engine.run_step()
    engine.lose_worker()
    assert engine.scheduler.advance_grammars() is None, "there is no epoch that it could be of"
    engine.attach()
    again = engine.scheduler.advance_grammars()
    assert again is not None and first is not None and again.epoch == 2 and again.ended == first.runs
    assert again.runs != first.runs and list(again.grammar_keys) == again.runs
    assert (again.positions, again.token_ids) == ([3], [engine.clients["bound", 0].token_ids])
    engine.run()
    engine.check_all_served()


def test_a_death_of_the_grammar_actor_holds_its_rows_until_the_grammar_is_there_again() -> None:
    engine = _engine()
    engine.admit(
        make_admit("free", [9, 9], max_tokens=6, ignore_eos=True),
        make_admit("bound", [1, 2, 3], max_tokens=6, ignore_eos=True, grammar_key="g"),
    )
    engine.scheduler.advance_grammars()
    engine.run_step()
    engine.pump(GrammarGone())
    engine.run()
    assert len(engine.clients["free", 0].token_ids) == 6, "who has no grammar goes on"
    assert len(engine.clients["bound", 0].token_ids) < 6
    assert engine.scheduler.advance_grammars() is None, "its next life knows nothing of runs that are over"
    engine.pump(GrammarReady("g"))
    told = engine.scheduler.advance_grammars()
    assert _rows(told) == [(0, 3, engine.clients["bound", 0].token_ids, "g")]
    engine.run()
    engine.check_all_served()
    (ledger,) = engine.scheduler.explain("bound")
    assert [preemption.cause for preemption in ledger.preemptions] == ["grammar"]


def test_late_masks_cost_steps_and_change_no_token() -> None:
    for depth in (1, 2, 3):
        engine = Engine(make_limits(pipeline_depth=depth))
        engine.pump(GrammarReady("g"))
        engine.admit(
            make_admit("free", [9, 9], max_tokens=12, ignore_eos=True),
            make_admit("bound", [1, 2, 3], max_tokens=12, ignore_eos=True, grammar_key="g", logprobs=1),
        )
        assert engine.worker is not None
        engine.worker.num_to_be_late = 3
        engine.run()
        engine.check_all_served()
        assert engine.scheduler.statistics().num_late_masks >= 3 // depth


def test_a_failure_of_the_engine_ends_the_requests_that_it_names_and_no_others() -> None:
    """Also one whose answer comes before itself; the grammar is tried again for the next one."""
    engine = Engine(make_limits(pipeline_depth=1))
    engine.guilty |= {("first", 0), ("early", 0), ("bad", 0)}
    engine.admit(*(make_admit(name, [1, 2], max_tokens=2, grammar_key="g") for name in ("first", "patient")))
    engine.pump(GrammarFailed("g", "no process starts", 500, ["first", "early"]))
    engine.admit(*(make_admit(name, [1, 2], max_tokens=2, grammar_key="g") for name in ("early", "late")))
    ends = {name: engine.clients[name, 0].finish for name in ("first", "patient", "early", "late")}
    assert {name for name, finish in ends.items() if finish is not None} == {"first", "early"}
    assert all(finish is None or finish.status == 500 for finish in ends.values())
    engine.pump(GrammarReady("g"))
    engine.run_step()
    assert all(len(engine.clients[name, 0].token_ids) == 1 for name in ("patient", "late"))
    engine.pump(GrammarFailed("h", "it is bad"))
    engine.admit(make_admit("bad", [1, 2], max_tokens=2, grammar_key="h"))
    finish = engine.clients["bad", 0].finish
    assert finish is not None and finish.status == 400, "what is bad stays bad"
