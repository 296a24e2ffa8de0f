"""Masks in shared memory: what is read is what was written for that very position, or nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.errors import ProtocolViolation
from callboard.shm_queue import MaskLayout, MaskRegion, create_mask_region

LAYOUT = MaskLayout(num_rows=4, num_positions=3, vocab_size=100)


def _mask(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(1 << 31), 1 << 31, LAYOUT.num_words, dtype=np.int64).astype(np.int32)


@pytest.fixture
def sides() -> Iterator[tuple[MaskRegion, MaskRegion]]:
    fd = create_mask_region(LAYOUT)
    writer, reader = MaskRegion(LAYOUT, fd), MaskRegion(LAYOUT, fd)
    os.close(fd)
    yield writer, reader
    writer.close()
    reader.close()


def _read(
    region: MaskRegion, epoch: int, *wanted: tuple[int, int, int], base: int | None = None
) -> tuple[list[bool], np.ndarray]:
    """base: of all; None: the position of each."""
    out = np.zeros((len(wanted), LAYOUT.num_words), np.int32)
    rows, runs, positions = zip(*wanted, strict=True)
    places = np.array(positions, np.int32)
    bases = places if base is None else np.full_like(places, base)
    found = region.read(epoch, np.array(rows, np.int32), np.array(runs, np.int64), bases, places, out)
    return found.tolist(), out


def test_nobody_can_take_the_memory_away_from_the_others() -> None:
    fd = create_mask_region(LAYOUT)
    try:
        for num_bytes in (0, 2 * LAYOUT.num_bytes):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, num_bytes)
        with pytest.raises(ProtocolViolation, match="layout"):
            MaskRegion(MaskLayout(num_rows=5, num_positions=3, vocab_size=100), fd)
    finally:
        os.close(fd)


def test_words_of_a_mask() -> None:
    assert MaskLayout(1, 1, 128_256).num_words == 4_008  # rules.md: 16,032 bytes
    assert MaskLayout(1, 1, 100).num_words == 4


def test_nothing_is_there_at_first(sides: tuple[MaskRegion, MaskRegion]) -> None:
    assert _read(sides[1], 1, (0, 0, 0), (3, 7, 5))[0] == [False, False]


def test_a_mask_is_found_by_epoch_run_and_position_alone(sides: tuple[MaskRegion, MaskRegion]) -> None:
    writer, reader = sides
    writer.write(2, epoch=5, run=77, base=10, position=10, mask=_mask(1))
    wanted = [(2, 77, 10), (2, 78, 10), (2, 77, 13), (1, 77, 10)]
    found, out = _read(reader, 5, *wanted)
    assert found == [True, False, False, False]
    assert np.array_equal(out[0], _mask(1))
    assert _read(reader, 6, (2, 77, 10))[0] == [False]


def test_a_mask_behind_drafts_holds_for_their_base_alone(sides: tuple[MaskRegion, MaskRegion]) -> None:
    """When the row has come to that position by other tokens it is none."""
    writer, reader = sides
    writer.write(2, 5, 77, base=10, position=10, mask=_mask(1))
    writer.write(2, 5, 77, base=10, position=11, mask=_mask(2))
    found, out = _read(reader, 5, (2, 77, 10), (2, 77, 11), base=10)
    assert found == [True, True] and np.array_equal(out, np.stack([_mask(1), _mask(2)]))
    assert _read(reader, 5, (2, 77, 11))[0] == [False]
    writer.write(2, 5, 77, base=11, position=11, mask=_mask(3))
    found, out = _read(reader, 5, (2, 77, 11))
    assert found == [True] and np.array_equal(out[0], _mask(3))
    assert _read(reader, 5, (2, 77, 11), base=10)[0] == [False]


def test_masks_of_as_many_positions_as_there_are_slots_stand_side_by_side(sides: tuple[MaskRegion, MaskRegion]) -> None:
    writer, reader = sides
    for position in range(20, 24):
        writer.write(0, 1, 9, position, position, _mask(position))
    found, out = _read(reader, 1, *((0, 9, position) for position in range(20, 24)))
    assert found == [False, True, True, True]
    assert np.array_equal(out[1:], np.stack([_mask(position) for position in (21, 22, 23)]))


@given(before=st.integers(0, 1 << 20), after=st.integers(0, 1 << 20), cut=st.sets(st.integers(0, 5), max_size=6))
def test_a_torn_mask_is_no_mask(before: int, after: int, cut: set[int]) -> None:
    """Stores may arrive in any order: some words are old, some new. Only all of one kind are a mask."""
    fd = create_mask_region(LAYOUT)
    region = MaskRegion(LAYOUT, fd)
    slots = np.memmap(f"/proc/self/fd/{fd}", np.int64, shape=(LAYOUT.num_rows * 3, LAYOUT.slot_words))
    region.write(1, 1, 4, 6, 6, _mask(before))
    old = slots[3].copy()
    region.write(1, 1, 4, 9, 9, _mask(after))
    new = slots[3].copy()
    torn = new.copy()
    torn[sorted(cut)] = old[sorted(cut)]
    slots[3] = torn
    found, out = _read(region, 1, (1, 4, 6), (1, 4, 9))
    assert found == [bool(np.array_equal(torn, old)), bool(np.array_equal(torn, new))]
    for is_there, mask, seed in zip(found, out, (before, after), strict=True):
        assert not is_there or np.array_equal(mask, _mask(seed))
    region.close()
    os.close(fd)
