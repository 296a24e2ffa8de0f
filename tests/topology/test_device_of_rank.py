"""Which GPU a rank is on."""

from __future__ import annotations

import pytest

from callboard.topology.device import device_of_rank


@pytest.mark.parametrize(("device", "rank", "expected"), [
    ("cuda", 0, "cuda"),
    ("cuda", 3, "cuda:3"),
    ("cuda:2", 0, "cuda:2"),
    ("cuda:2", 1, "cuda:3"),
])  # fmt: skip
def test_ranks_are_on_the_named_device_and_the_following_ones(device, rank, expected):
    assert device_of_rank(device, rank) == expected
