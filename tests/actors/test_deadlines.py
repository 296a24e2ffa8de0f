"""A request's deadline on its way: counted from its arrival, also while its prompt is encoded, also over a death."""

from __future__ import annotations

import time

import msgspec
import pytest

from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.requests import Abort, Delivered, Finish, Generate, TextPrompt, TokenPrompt, Usage
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.tests.actors.frontend_rig import FrontendRig
from callboard.tests.actors.tokenizer_rig import TokenizerRig

PAST = 1
"""A time of CLOCK_MONOTONIC that has been."""


def due(rig: TokenizerRig, deadline_ns: int | None, num_choices: int = 1, **sampling: object) -> Generate:
    return msgspec.structs.replace(
        rig.request(prompt=TextPrompt("ab"), num_choices=num_choices, **sampling), deadline_ns=deadline_ns, tenant="t"
    )


def soon(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


# The frontend


@pytest.mark.parametrize(("deadline_ms", "offset_ns"), [(None, None), (1500, 1_500_000_000), (0.25, 250_000)])
async def test_it_counts_from_the_arrival_and_stays_over_resumes(
    deadline_ms: float | None, offset_ns: int | None
) -> None:
    rig = FrontendRig()
    rig.frontend.submit("r", TokenPrompt([1]), SamplingParams(seed=1), deadline_ms=deadline_ms, tenant="t")
    (generate,) = rig.sent()
    expected = None if offset_ns is None else generate.arrival_ns + offset_ns
    assert (generate.deadline_ns, generate.tenant) == (expected, "t")
    rig.die("scheduler")
    again = rig.resumed().generate
    assert (again.attempt, again.deadline_ns, again.arrival_ns, again.tenant) == (
        2,
        expected,
        generate.arrival_ns,
        "t",
    )


async def test_a_request_without_tenant_and_deadline_has_none() -> None:
    rig = FrontendRig()
    rig.submit()
    (generate,) = rig.sent()
    assert (generate.deadline_ns, generate.tenant) == (None, "")


# The tokenizer


async def test_deadline_and_tenant_go_on_to_the_scheduler_with_each_choice() -> None:
    rig = TokenizerRig()
    deadline_ns = soon(3600)
    rig.actor.handle(due(rig, deadline_ns, num_choices=2))
    await rig.encode()
    admits = rig.sent()
    assert [(admit.choice, admit.deadline_ns, admit.tenant) for admit in admits] == [
        (0, deadline_ns, "t"),
        (1, deadline_ns, "t"),
    ]


@pytest.mark.parametrize("is_full", [False, True])
async def test_one_that_comes_too_late_is_told_at_once_and_never_read(is_full: bool) -> None:
    """Also where a request that came in time would get a 429."""
    rig = TokenizerRig(max_encodings=0 if is_full else 2)
    rig.actor.handle(due(rig, PAST, num_choices=2))
    (deltas,) = rig.to_frontend.receive_all_nowait()
    assert (deltas.choices, deltas.token_ids, deltas.texts) == ([0, 1], [[], []], ["", ""])
    assert deltas.finishes == {0: Finish("timeout", Usage(0, 0, 0)), 1: Finish("timeout", Usage(0, 0, 0))}
    assert rig.holds_nothing() and rig.sent() == [] and not rig.threads.waiting


async def test_one_that_passes_while_the_prompt_is_encoded_ends_the_request_there() -> None:
    rig = TokenizerRig()
    rig.actor.handle(due(rig, soon(0.02)))
    deltas = await rig.to_frontend.receive()
    assert deltas.finishes == {0: Finish("timeout", Usage(0, 0, 0))}
    await rig.encode()
    assert rig.holds_nothing() and rig.sent() == [] and rig.to_frontend.receive_all_nowait() == []
    assert rig.actor._num_encodings == 0


async def test_one_that_passes_later_is_the_schedulers_affair() -> None:
    rig = TokenizerRig()
    deadline_ns = soon(0.02)
    rig.actor.handle(due(rig, deadline_ns))
    await rig.encode()
    (admit,) = rig.sent()
    assert isinstance(admit, Admit)
    # One more, whose end shows that the time has come.
    rig.actor.handle(msgspec.structs.replace(due(rig, deadline_ns + 1), request_id="s"))
    assert (await rig.to_frontend.receive()).request_ids == ["s"]
    assert rig.actor._states.get(("r", 0)) is not None, "the admitted one still waits for the scheduler's word"


async def test_a_resumed_one_brings_the_text_that_was_held_back_and_ends_for_the_scheduler_too() -> None:
    rig = TokenizerRig()
    request = due(rig, PAST, stop=("abc",))
    rig.resume(request, 2, Delivered(0, [4], 0))  # "ab" may be the beginning of the stop string
    (deltas,) = rig.to_frontend.receive_all_nowait()
    assert (deltas.texts, deltas.attempts, deltas.positions) == (["ab"], [2], [1])
    assert deltas.finishes == {0: Finish("timeout", Usage(0, 1, 0))}
    (abort,) = rig.sent()
    assert (abort.request_id, abort.attempt) == ("r", 2) and isinstance(abort, Abort)
    assert rig.holds_nothing()


async def test_the_schedulers_timeout_brings_held_back_text_and_the_prompt() -> None:
    rig = TokenizerRig()
    rig.actor.handle(msgspec.structs.replace(due(rig, soon(3600), stop=("abc",)), returns_prompt=True))
    await rig.encode()
    rig.sent()
    rig.tokens(0, [4])
    assert rig.answer().texts == [""]
    finish = Finish("timeout", Usage(1, 1, 0))
    rig.tokens(1, [], finish)
    deltas = rig.answer()
    assert (deltas.texts, deltas.token_ids, deltas.finishes) == (["ab"], [[]], {0: finish})
    assert rig.holds_nothing() and rig.sent() == []


async def test_a_timer_that_fails_ends_the_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = TokenizerRig()
    monkeypatch.setattr(rig.actor, "_end", lambda *_: 1 / 0)
    rig.actor.handle(due(rig, soon(0.001)))
    with pytest.raises(ZeroDivisionError):
        await rig.faults.run(rig.to_frontend.receive())
