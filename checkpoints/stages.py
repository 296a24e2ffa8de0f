"""What each of several stages holds of a model whose layers they share out: consecutive layers, and on the way in the
embedding, on the way out the last norm and the head (Narayanan et al. 2021, arXiv:2104.04473)."""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from .llama_weights import EMBEDDING, FINAL_NORM, HEAD
from .shape import ModelShape
from .sharding import share_out

_IN_LAYER = re.compile(r"(model\.layers\.)(\d+)(\..*)")


class Stage(NamedTuple):
    """Layers `first` to `last` - 1 of a model."""

    number: int
    """0 .. num_stages - 1"""
    num_stages: int
    first: int
    last: int

    @property
    def is_first(self) -> bool:
        return self.number == 0

    @property
    def is_last(self) -> bool:
        return self.number == self.num_stages - 1

    def shape_of(self, shape: ModelShape) -> ModelShape:
        """`shape` with the stage's layers alone."""
        windows = shape.windows[self.first : self.last]
        return msgspec.structs.replace(shape, num_layers=self.last - self.first, windows=windows)

    def local_name(self, name: str, *, is_tied: bool) -> str | None:
        """What a tensor of the whole model is called here, where layers are counted from 0; None if it is not held.

        is_tied: the head is the embedding, which the last stage has as its head then."""
        if (found := _IN_LAYER.fullmatch(name)) is not None:
            layer = int(found[2])
            return f"{found[1]}{layer - self.first}{found[3]}" if self.first <= layer < self.last else None
        if name == EMBEDDING[1]:
            if self.is_first:
                return name
            return HEAD[1] if self.is_last and is_tied else None
        assert name in (FINAL_NORM[1], HEAD[1])
        return name if self.is_last else None

    def sizes_of(self, sizes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """sizes: of all tensors of a model that has the stage's layers alone, by name -> those that the stage holds,
        without rows where it holds nothing; the head is always among them."""
        embedding = sizes[EMBEDDING[1]]
        held = dict(sizes)
        held[HEAD[1]] = embedding if self.is_last else (0, embedding[1])
        if not self.is_first:
            held[EMBEDDING[1]] = (0, embedding[1])
        if not self.is_last:
            held[FINAL_NORM[1]] = (0,)
        return held


def stage_of(num_layers: int, number: int, num_stages: int) -> Stage:
    """Layers are shared out evenly, earlier stages have one more."""
    share = share_out(num_layers, num_stages)[number]
    return Stage(number, num_stages, share.first, share.last)
