"""A paged cache for tests of attention on the GPU: rows in scattered blocks, NaN in every slot that no row wrote."""

from __future__ import annotations

import torch

from callboard.tests.kernels.gpu import DEVICE


class PagedCache:
    """Random keys and values of rows of `kv_lens` tokens."""

    def __init__(
        self, kv_lens: list[int], kv_heads: int, head_dim: int, dtype: torch.dtype, block_size: int, seed: int = 0
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        blocks = [-(-n // block_size) for n in kv_lens]
        num_blocks = sum(blocks) + 2
        order = torch.randperm(num_blocks, generator=self.generator).int()
        tables = torch.full((len(kv_lens), max(blocks) + 3), 2**30, dtype=torch.int32)  # of no block: never to be read
        keys, values = (torch.full((num_blocks * block_size, kv_heads, head_dim), torch.nan) for _ in range(2))
        first = 0
        for row, (n, count) in enumerate(zip(kv_lens, blocks, strict=True)):
            tables[row, :count] = order[first : first + count]
            slots = (tables[row, :count, None] * block_size + torch.arange(block_size)).flatten()[:n].long()
            for cache in (keys, values):
                cache[slots] = torch.randn(n, kv_heads, head_dim, generator=self.generator)
            first += count
        self.keys, self.values = (cache.to(DEVICE, dtype) for cache in (keys, values))
        self.block_tables = tables.to(DEVICE)[:, :-1]  # rows lie further apart than they are long
        self.kv_lens = torch.tensor(kv_lens, dtype=torch.int32, device=DEVICE)

    def on_cpu(self, dtype: torch.dtype, query_starts: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Arguments of the twin behind q: keys, values, block tables, query starts, lengths."""
        keys, values = (cache.cpu().to(dtype) for cache in (self.keys, self.values))
        return keys, values, self.block_tables.cpu(), query_starts.cpu(), self.kv_lens.cpu()
