"""The load shapes that are measured: how many requests, how many at once, how long, and what their prompts share."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence

import msgspec


class Point(msgspec.Struct, frozen=True):
    """A closed loop of greedy requests whose output has a forced length; lengths in tokens."""

    name: str
    concurrency: int
    num_requests: int
    input_len: int
    output_len: int
    shared_prefix_len: int = 0
    """So many tokens at its head every prompt of a run has alike."""
    num_warm_up: int = 0
    """Requests before the clock starts; they share no prefix with the others."""

    def prompts(self, vocab_size: int, round_index: int) -> list[list[int]]:
        """Random ids, others in every round and at every point, so that nothing but the shared prefix is a hit."""
        draw = random.Random(zlib.crc32(f"{self.name} {round_index}".encode()))
        prefix = _random_ids(draw, self.shared_prefix_len, vocab_size)
        own_len = self.input_len - self.shared_prefix_len
        return [prefix + _random_ids(draw, own_len, vocab_size) for _ in range(self.num_requests)]

    def warm_up_prompts(self, vocab_size: int, round_index: int) -> list[list[int]]:
        """As long as the others."""
        draw = random.Random(zlib.crc32(f"{self.name} {round_index} warm-up".encode()))
        return [_random_ids(draw, self.input_len, vocab_size) for _ in range(self.num_warm_up)]


POINTS: Sequence[Point] = (
    Point("c1", 1, 6, 128, 128, num_warm_up=2),
    Point("c4", 4, 16, 128, 128, num_warm_up=2),
    Point("c16", 16, 32, 128, 128, num_warm_up=2),
    Point("c32", 32, 64, 128, 128, num_warm_up=2),
    Point("shared", 8, 32, 544, 32, shared_prefix_len=512),
    Point("long", 1, 3, 2000, 16, num_warm_up=1),
)
STARTUP = "startup"
"""The point that has no load: every start is timed, and this one alone asks for nothing else."""


def _random_ids(draw: random.Random, number: int, vocab_size: int) -> list[int]:
    """Special tokens stand at a vocabulary's ends, bytes at its beginning: neither is drawn."""
    first, end = min(300, vocab_size // 4), vocab_size - vocab_size // 40
    return [draw.randrange(first, end) for _ in range(number)]
