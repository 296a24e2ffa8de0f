"""A decoder's layers over several ranks: what a rank adds to its own part of each product.

Embedding and head are cut by tokens: each rank looks up the rows that it has, and has the logits of its own tokens.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checkpoints.sharding import Sharding
from .collective import Collective


class TensorParallel:
    """One rank of a group."""

    def __init__(self, sharding: Sharding, collective: Collective, device: torch.device) -> None:
        self.sharding, self.collective = sharding, collective
        shares = [sharding.tokens(rank) for rank in range(sharding.size)]
        self._own = shares[collective.rank]
        self._counts = [share.num_real for share in shares]
        self._ends = torch.tensor([share.last for share in shares], device=device)

    def sum_of(self, partial: Tensor) -> Tensor:
        """[num_tokens, hidden_size]: each rank's part of a product -> the product, on every rank. Not to be used after:
        `partial`."""
        return self.collective.all_reduce(partial)

    def embed(self, token_ids: Tensor, embedding: Tensor) -> Tensor:
        """token_ids: int64 [t]; embedding: [tokens of this rank, hidden_size]. Returns [t, hidden_size]."""
        own = (token_ids - self._own.first).clamp_(0, self._own.num_real - 1)
        of_ranks = self.collective.all_gather(F.embedding(own, embedding))
        owners = torch.bucketize(token_ids, self._ends, right=True)
        return of_ranks[owners, torch.arange(len(token_ids), device=token_ids.device)]

    def put_logits(self, own: Tensor, out: Tensor) -> None:
        """own: [k, tokens of this rank]; out: [k, vocab_size], written on rank 0 alone."""
        of_ranks = self.collective.gather(own)
        if of_ranks is None:
            return
        first = 0
        for part, count in zip(of_ranks, self._counts, strict=True):
            out[:, first : first + count] = part[:, :count]
            first += count

    def gather_logits(self, own: Tensor) -> Tensor:
        """own: [k, tokens of this rank] -> [k, vocab_size] on rank 0, [k, 0] on the others."""
        of_ranks = self.collective.gather(own)
        if of_ranks is None:
            return own[:, :0]
        return torch.cat([part[:, :count] for part, count in zip(of_ranks, self._counts, strict=True)], dim=1)
