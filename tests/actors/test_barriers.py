"""Frontends are told of a death last: when every neighbour that lives has parted."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.barriers import Barriers
from callboard.mailbox.messages.control import Settled

SETTLED = Settled(("tokenizer",), has_served=True, suspects=())


def test_the_last_to_part_opens_it_in_any_order() -> None:
    for order in permutations("abc"):
        barriers = Barriers()
        assert barriers.begin("p", 1, SETTLED, set("abc")) is None
        assert [barriers.parted(name, "p", 1) for name in order] == [None, None, SETTLED]


def test_without_neighbours_it_is_open() -> None:
    assert Barriers().begin("p", 1, SETTLED, set()) is SETTLED


def test_a_neighbour_that_dies_has_parted() -> None:
    barriers = Barriers()
    barriers.begin("p", 1, SETTLED, {"a", "b"})
    assert barriers.parted("a", "p", 1) is None
    assert barriers.lost("b") == [SETTLED]


def test_each_incarnation_has_its_own() -> None:
    barriers = Barriers()
    barriers.begin("p", 1, SETTLED, {"a"})
    barriers.begin("p", 2, SETTLED, {"a"})
    assert barriers.parted("a", "p", 2) is SETTLED
    assert barriers.parted("a", "p", 1) is SETTLED
    assert barriers.parted("a", "p", 1) is None, "an answer twice"


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcd")), max_size=12),
    st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_it_opens_exactly_once_and_not_before_all_are_through(events: list[tuple[bool, str]], names: set[str]) -> None:
    barriers = Barriers()
    barriers.begin("p", 7, SETTLED, names)
    left, num_opened = set(names), 0
    for is_death, name in events:
        opened = barriers.lost(name) if is_death else barriers.parted(name, "p", 7)
        left.discard(name)
        num_opened += bool(opened)
        assert num_opened == (not left)
