"""Who has to go when blocks run out: the three choices against brute force, and worked numbers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.scheduling import cost, lifo, retract
from callboard.scheduling.policy_views import ChooseVictim, VictimView
from callboard.scheduling.request import Request, RequestState
from callboard.tests.scheduling.fake_request import FakeRequest, fake_request, held, snapshot

BLOCK = 16
CHOICES: dict[str, ChooseVictim] = {
    "lifo": lifo.choose_victim,
    "retract": retract.choose_victim,
    "cost": cost.choose_victim,
}


def view_of(won: dict[tuple[str, int], int] | None = None, *, prefix_caching: bool = False) -> VictimView:
    """Blocks won by key; all that a request holds where nothing is said."""
    by_key = won or {}
    return VictimView(lambda request: by_key.get(request.key, len(request.block_ids)), BLOCK, prefix_caching)


def running_request(order: int, num_tokens: int, **fields: object) -> Request:
    """So many tokens computed, in blocks of its own."""
    return fake_request(
        order,
        state=RequestState.RUNNING,
        num_computed_tokens=num_tokens,
        block_ids=held(-(-num_tokens // BLOCK)),
        **fields,  # type: ignore[arg-type]
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Request], VictimView]:
    """Rows in plan order, with shared blocks at the head of some."""
    running, won = [], {}
    for order in range(draw(st.integers(1, 10))):
        num_shared, num_own = draw(st.integers(0, 2)), draw(st.integers(0, 40))
        request = running_request(
            order,
            num_shared * BLOCK + num_own,
            priority=draw(st.integers(0, 1)),
            num_prompt_tokens=draw(st.integers(1, 3)),
            num_output_tokens=draw(st.integers(0, 2)),
            num_preemptions=draw(st.integers(0, 9)),
        )
        won[request.key] = len(request.block_ids) - num_shared
        running.append(request)
    return running, view_of(won, prefix_caching=draw(st.booleans()))


# Brute force ----------------------------------------------------------------------------------------------------------


def ranking(name: str, running: list[Request], view: VictimView) -> list[Request]:
    """All but the first, who goes soonest first; sorted as a whole."""
    if len(running) == 1:
        return running
    places = {request.key: place for place, request in enumerate(running)}

    def lost(request: Request) -> int:
        """Tokens in blocks of its own, which stand behind those that it shares."""
        num_shared = len(request.block_ids) - view.num_won_blocks(request)
        return 0 if view.prefix_caching else request.num_computed_tokens - num_shared * BLOCK

    def key(request: Request) -> tuple[object, ...]:
        last_first, least_urgent_first = -places[request.key], -request.rank[0]
        if name == "lifo":
            return (last_first,)
        if name == "retract":
            return (least_urgent_first, request.num_output_tokens, -request.num_prompt_tokens, last_first)
        frees_nothing = view.num_won_blocks(request) == 0
        return (least_urgent_first, frees_nothing, request.num_preemptions // 4, lost(request), last_first)

    return sorted(running[1:], key=key)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("name", CHOICES)
@settings(max_examples=40)
@given(run=runs())
def test_the_victim_is_that_of_brute_force_and_the_choice_is_pure(
    name: str, run: tuple[list[Request], VictimView]
) -> None:
    running, view = run
    before, order = snapshot(running), list(running)
    expected = ranking(name, running, view)[0]
    for _ in range(2):
        assert CHOICES[name](running, view) is expected
    assert CHOICES[name](tuple(running), view) is expected
    assert running == order and snapshot(running) == before


@pytest.mark.parametrize("name", CHOICES)
@settings(max_examples=40)
@given(run=runs())
def test_the_first_goes_last_of_all(name: str, run: tuple[list[Request], VictimView]) -> None:
    """However often one has to go, somebody gets on."""
    running, view = run
    first, rows = running[0], list(running)
    gone = []
    while rows:
        gone.append(CHOICES[name](rows, view))
        rows.remove(gone[-1])
    assert gone[-1] is first
    assert len(gone) == len(running)


# Worked numbers -------------------------------------------------------------------------------------------------------


def test_lifo_takes_the_last_and_looks_at_no_other() -> None:
    class Untouched(list[Request]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("all are gone through")

    running = Untouched([running_request(1, 100), running_request(2, 1), running_request(3, 1000)])
    assert lifo.choose_victim(running, view_of()).rank[2] == 3


def test_retract_takes_the_fewest_output_tokens_then_the_longest_prompt() -> None:
    """Outputs 0, 40, 7, 7, 30 with prompts of 9, 9, 20, 50, 90: the first is spared, of the two with 7 the prompt of 50
    goes, then the one of 20, then by output."""
    running = [
        running_request(order, 100, num_output_tokens=num_output, num_prompt_tokens=num_prompt)
        for order, (num_output, num_prompt) in enumerate([(0, 9), (40, 9), (7, 20), (7, 50), (30, 90)])
    ]
    gone = []
    while running:
        gone.append(retract.choose_victim(running, view_of()).rank[2])
        running = [request for request in running if request.rank[2] not in gone]
    assert gone == [3, 2, 4, 1, 0]


def test_without_a_cache_the_least_that_is_lost_goes_first() -> None:
    """1 (the first), 160, 16, 33 and 17 tokens."""
    running = [running_request(order, num_tokens) for order, num_tokens in enumerate([1, 160, 16, 33, 17])]
    gone = []
    while running:
        gone.append(cost.choose_victim(running, view_of()).rank[2])
        running = [request for request in running if request.rank[2] not in gone]
    assert gone == [2, 4, 3, 1, 0]


def test_with_a_cache_nothing_is_lost_and_the_last_goes_first() -> None:
    running = [running_request(order, num_tokens) for order, num_tokens in enumerate([1, 160, 16, 33, 17])]
    assert cost.choose_victim(running, view_of(prefix_caching=True)).rank[2] == 4


def test_cost_counts_what_others_share_as_neither_won_nor_lost() -> None:
    """Of 1,152 tokens 992 stand in blocks of a prompt that others share: 160 are lost, and of 320 all."""
    sharer, owner = running_request(1, 72 * BLOCK), running_request(2, 20 * BLOCK)
    view = view_of({sharer.key: 10})
    assert cost.choose_victim([running_request(0, 1), sharer, owner], view) is sharer


def test_cost_takes_one_that_frees_nothing_only_if_all_do() -> None:
    shared, owner = running_request(1, 32), running_request(2, 320, num_preemptions=4)
    rows = [running_request(0, 1), shared, owner]
    assert cost.choose_victim(rows, view_of({shared.key: 0})) is owner
    assert cost.choose_victim(rows, view_of({shared.key: 0, owner.key: 0})) is shared


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_cost_takes_turns(prefix_caching: bool) -> None:
    """Three equal rows behind the first, each taken for the others' sake: none a fifth time before all went four."""
    running = [running_request(order, 100) for order in range(4)]
    gone = []
    for _ in range(24):
        victim = cost.choose_victim(running, view_of(prefix_caching=prefix_caching))
        gone.append(victim.rank[2])
        assert isinstance(victim, FakeRequest)
        victim.num_preemptions += 1
    assert gone == 2 * ([3] * 4 + [2] * 4 + [1] * 4)


@pytest.mark.parametrize("name", ["retract", "cost"])
def test_the_urgent_is_spared_while_a_less_urgent_one_is_there(name: str) -> None:
    """It would be cheaper by every other measure."""
    urgent = running_request(1, 1, priority=0)
    patient = [running_request(order, 1000, priority=1, num_output_tokens=50) for order in (2, 3)]
    assert CHOICES[name]([running_request(0, 1), urgent, *patient], view_of()) is patient[-1]
