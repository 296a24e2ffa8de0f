"""Every interleaving of a writer, its readers and the sealer, with the death of anyone at any point (board_model.py).

Expected: no record is lost, doubled or torn; after the writer's death all living readers end at the same record, and
none that anybody was told of is missing; whoever waits for ever waits, directly or through the writer, for a reader
that is dead; without a death all records arrive and the stream ends. `pytest -s` prints how many states were visited.
"""

from __future__ import annotations

import pytest

from callboard.errors import ProtocolViolation, StaleEpoch
from callboard.tests.shm_queue.board_model import RULES, Counts, Fault, Model, Rules


def report(what: str, num_slots: int, counts: Counts) -> None:
    print(f"\n{what} of {num_slots} slots: {counts.num_states:,} states, {counts.num_at_rest:,} at rest", end="")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_slots", "min_states"), [(1, 9_000), (2, 80_000), (3, 110_000), (4, 110_000), (5, 110_000)]
)
def test_every_interleaving_of_a_board(num_slots: int, min_states: int) -> None:
    """Two readers. Boards of a pipeline of depth 1 to 3 have 3 to 5 slots; in 1 and 2 the writer has to wait."""
    counts = Model(num_slots, 2).explore(may_die=True)
    report("board", num_slots, counts)
    assert counts.num_states > min_states
    assert counts.num_at_rest > 50


@pytest.mark.parametrize(("num_slots", "min_states"), [(1, 2_000), (2, 5_000), (3, 5_000)])
def test_every_interleaving_of_a_ring(num_slots: int, min_states: int) -> None:
    """One reader; the writer's caller never waits, but merges what finds no credit into the next record."""
    counts = Model(num_slots, 1, can_merge=True).explore(may_die=True)
    report("ring", num_slots, counts)
    assert counts.num_states > min_states
    assert counts.num_at_rest > 100


HAND_OVER = RULES.hand_over
HEADER = ("epoch", "length", "kind", "sequence")


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        (Rules(hand_over=("ring_0", "fill_0", "fill_1", *HEADER, "ring_1")), "epoch 0|record 0 where 1 is next"),
        (Rules(hand_over=("fill_0", *HEADER, "ring_0", "fill_1", "ring_1")), "torn"),
        (Rules(hand_over=HAND_OVER[:-1]), "half entered|told of is lost|waits for"),
        (Rules(take_over=("credit", "check", "copy_0", "copy_1")), "torn|lost|is next"),
        (Rules(take_over=("check", "copy_0", "credit", "credit", "copy_1")), "gave back"),
        (Rules(take_over=("check", "copy_0", "copy_1")), "the writer waits for a living reader"),
    ],
    ids=["rung_empty", "rung_half_full", "one_never_rung", "credit_before_copy", "credited_twice", "no_credit"],
)
def test_a_wrong_order_is_found(rules: Rules, fault: str) -> None:
    with pytest.raises((Fault, ProtocolViolation, StaleEpoch), match=fault) as found:
        Model(1, 2, rules).explore(may_die=False)
    print(f"\nfound: {found.value}", end="")


@pytest.mark.parametrize(
    ("rules", "fault"),
    [
        (Rules(hand_over=("sequence", *HAND_OVER[:5], "ring_0", "ring_1")), "torn|lost|epoch 0"),
        (Rules(hand_over=("fill_0", *HEADER, "fill_1", "ring_0", "ring_1")), "torn"),
        (Rules(seal=()), "a reader waits for a writer that has ended"),
        (Rules(seal=("look", "store", "ring_0")), "a reader waits for a writer that has ended"),
        (Rules(seal=("look", "ring_0", "store", "ring_1")), "sealed to end at 0"),
        (Rules(find_end=lambda _, num_told: min(num_told) + 1), "half entered|told of is lost|is next"),
        (Rules(waits_for_death=False), "waits for a living|lost|are missing|is next"),
    ],
    ids=[
        "sequence_first",
        "sequence_before_payload",
        "never_sealed",
        "one_never_told",
        "told_before_the_store",
        "sealed_to_what_all_were_rung",
        "sealed_alive",
    ],
)
def test_a_wrong_end_is_found(rules: Rules, fault: str) -> None:
    """These do no harm until a writer dies or is taken for dead."""
    if rules.waits_for_death:
        Model(1, 2, rules).explore(may_die=False)
    with pytest.raises((Fault, ProtocolViolation, StaleEpoch), match=fault) as found:
        Model(1, 2, rules).explore(may_die=True)
    print(f"\nfound: {found.value}", end="")
