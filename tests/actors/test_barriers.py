"""Frontends are told of a death last: when every neighbour that lives has parted."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.barriers import Barriers


def test_the_last_to_part_opens_it_in_any_order() -> None:
    for order in permutations("abc"):
        barriers = Barriers()
        assert barriers.begin("p", 1, ("tokenizer",), set("abc")) == ()
        assert [barriers.parted(name, "p", 1) for name in order] == [(), (), ("tokenizer",)]


def test_without_neighbours_it_is_open() -> None:
    assert Barriers().begin("p", 1, ("worker",), set()) == ("worker",)


def test_a_neighbour_that_dies_has_parted() -> None:
    barriers = Barriers()
    barriers.begin("p", 1, ("tokenizer",), {"a", "b"})
    assert barriers.parted("a", "p", 1) == ()
    assert barriers.lost("b") == ["tokenizer"]


def test_each_incarnation_has_its_own() -> None:
    barriers = Barriers()
    barriers.begin("p", 1, ("tokenizer",), {"a"})
    barriers.begin("p", 2, ("tokenizer",), {"a"})
    assert barriers.parted("a", "p", 2) == ("tokenizer",)
    assert barriers.parted("a", "p", 1) == ("tokenizer",)
    assert barriers.parted("a", "p", 1) == (), "an answer twice"


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from("abcd")), max_size=12),
    st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_it_opens_exactly_once_and_not_before_all_are_through(events: list[tuple[bool, str]], names: set[str]) -> None:
    barriers = Barriers()
    barriers.begin("p", 7, ("scheduler",), names)
    left, opened = set(names), 0
    for is_death, name in events:
        settled = barriers.lost(name) if is_death else barriers.parted(name, "p", 7)
        left.discard(name)
        opened += bool(settled)
        assert opened == (not left)
