"""What each of several ranks holds of a model whose layers they share: which rows and columns of every tensor.

Query, key, value, gate and up are cut by rows (of their output), the attention's output and down by columns, so that
two sums over the ranks a layer suffice; embedding and head by rows of the vocabulary; norms are whole on every rank
(Shoeybi et al. 2019, arXiv:1909.08053).

A group is a KV head with the query heads that share it. Where groups are fewer than ranks a group goes to several
ranks, which share its query heads and hold its KV head once each. What does not divide is filled up with zeros, so that
all ranks have one shape: a zero head, or a zero unit of the MLP, adds nothing to any sum.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .llama_weights import EMBEDDING, HEAD
from .model_weights import count_parameters
from .shape import ModelShape

_UNIT = 8
"""Elements that stay together where the intermediate size and the vocabulary are shared out: 16 bytes of bfloat16."""
_QUERIES = ("self_attn.q_proj.weight", "self_attn.q_proj.bias")
_KEYS_AND_VALUES = (
    "self_attn.k_proj.weight",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.weight",
    "self_attn.v_proj.bias",
)
_UNITS = ("mlp.gate_proj.weight", "mlp.gate_proj.bias", "mlp.up_proj.weight", "mlp.up_proj.bias")
_SUMMED_BIASES = ("self_attn.o_proj.bias", "mlp.down_proj.bias")


class Share(NamedTuple):
    """Elements `first` to `last` - 1 of an axis, then zeros, `size` in all."""

    first: int
    last: int
    size: int

    @property
    def num_real(self) -> int:
        return self.last - self.first


class Sharding:
    """Of a model of `shape` over `size` ranks. Raises ValueError where a rank would get no query head, no unit of the
    MLP or no token (`obstacle` says so before)."""

    def __init__(self, shape: ModelShape, size: int) -> None:
        if (why_not := obstacle(shape, size)) is not None:
            raise ValueError(why_not)
        self.shape, self.size = shape, size
        heads_per_group, groups = shape.num_heads // shape.num_kv_heads, shape.num_kv_heads
        self._query_heads: tuple[Share, ...]
        self._kv_heads: tuple[Share, ...]
        if groups >= size:
            self._kv_heads = share_out(groups, size)
            self._query_heads = tuple(Share(*(n * heads_per_group for n in share)) for share in self._kv_heads)
        else:
            sharers = share_out(size, groups)  # of each group: its ranks
            most = -(-heads_per_group // min(ranks.num_real for ranks in sharers))
            parts = [
                (group, part._replace(size=most))
                for group, ranks in enumerate(sharers)
                for part in share_out(heads_per_group, ranks.num_real)
            ]
            self._kv_heads = tuple(Share(group, group + 1, 1) for group, _ in parts)
            self._query_heads = tuple(
                Share(group * heads_per_group + part.first, group * heads_per_group + part.last, part.size)
                for group, part in parts
            )
        self._units = share_out(shape.intermediate_size, size, _UNIT)
        self._tokens = share_out(shape.vocab_size, size, _UNIT)

    @property
    def local_shape(self) -> ModelShape:
        """Of every rank: its heads, KV heads, intermediate size and tokens."""
        local = msgspec.structs.replace(
            self.shape,
            num_heads=self._query_heads[0].size,
            num_kv_heads=self._kv_heads[0].size,
            intermediate_size=self._units[0].size,
            vocab_size=self._tokens[0].size,
        )
        return msgspec.structs.replace(local, num_parameters=count_parameters(local))

    @property
    def num_heads(self) -> int:
        """Of all ranks together, zero heads and those of KV heads that are held several times included."""
        return self.size * self._query_heads[0].size

    @property
    def num_kv_heads(self) -> int:
        """As `num_heads`."""
        return self.size * self._kv_heads[0].size

    @property
    def intermediate_size(self) -> int:
        """Of all ranks together."""
        return self.size * self._units[0].size

    def query_heads(self, rank: int) -> Share:
        return self._query_heads[rank]

    def kv_heads(self, rank: int) -> Share:
        return self._kv_heads[rank]

    def tokens(self, rank: int) -> Share:
        """Ids of the vocabulary that the rank has the embedding and the logits of."""
        return self._tokens[rank]

    def of_tensor(self, rank: int, name: str, size: tuple[int, ...]) -> tuple[Share, ...]:
        """What `rank` holds of a tensor, axis by axis; name: canonical; size: of the whole tensor."""
        rows, *others = (Share(0, length, length) for length in size)
        _, _, in_layer = name.partition(".layers.")
        _, _, short = in_layer.partition(".")
        head_dim = self.shape.head_dim
        if name in (EMBEDDING[1], HEAD[1]):
            rows = self._tokens[rank]
        elif short in _QUERIES:
            rows = _times(self._query_heads[rank], head_dim)
        elif short in _KEYS_AND_VALUES:
            rows = _times(self._kv_heads[rank], head_dim)
        elif short in _UNITS:
            rows = self._units[rank]
        elif short == "self_attn.o_proj.weight":
            others = [_times(self._query_heads[rank], head_dim)]
        elif short == "mlp.down_proj.weight":
            others = [self._units[rank]]
        elif short in _SUMMED_BIASES and rank:
            rows = Share(0, 0, rows.size)  # once in the sum
        return (rows, *others)


def share_out(total: int, num_parts: int, unit: int = 1) -> tuple[Share, ...]:
    """`total` elements in order over `num_parts` parts as evenly as whole units allow, the longer parts first; each is
    filled up to the longest. Parts are in single elements where whole units would leave one without any."""
    if total % unit or total // unit < num_parts:
        unit = 1
    per_part, num_longer = divmod(total // unit, num_parts)
    lengths = [(per_part + (part < num_longer)) * unit for part in range(num_parts)]
    shares, first = [], 0
    for length in lengths:
        shares.append(Share(first, first + length, lengths[0]))
        first += length
    return tuple(shares)


def obstacle(shape: ModelShape, size: int) -> str | None:
    """Why a model cannot be shared by `size` ranks; None if it can."""
    for what, most in (
        ("heads", shape.num_heads),
        ("units of the MLP", shape.intermediate_size),
        ("tokens", shape.vocab_size),
    ):
        if size > most:
            return f"{size} ranks cannot share {most:,} {what}"
    return None


def _times(share: Share, factor: int) -> Share:
    return Share(*(n * factor for n in share))
