"""KV blocks as a list and two dicts: what `kv_cache` has to do, read from the rules and from nothing else."""

from __future__ import annotations

from collections.abc import Sequence

Content = tuple[str, tuple[int, ...]]
"""(cache salt, every token up to the end of the block): what makes the K/V of a full block what they are."""


class TwinPool:
    """A block is in `free`, or it has users; it may have a content by which it is found, whichever it is."""

    def __init__(self, num_blocks: int, block_size: int, is_cached: bool) -> None:
        self.block_size = block_size
        self.is_cached = is_cached
        self.free = list(range(num_blocks))
        """The next one to be taken first, what was freed last at the end."""
        self.num_users = [0] * num_blocks
        self.contents: dict[int, Content] = {}

    def take(self, num_blocks: int) -> list[int]:
        """From the head of the free list. A block that is taken cannot be found any more."""
        assert num_blocks <= len(self.free), "the twin takes blocks that are not there"
        taken = [self.free.pop(0) for _ in range(num_blocks)]
        for block in taken:
            self.num_users[block] = 1
            self.contents.pop(block, None)
        return taken

    def share(self, blocks: Sequence[int]) -> None:
        """One user more for each; a free one is free no longer."""
        for block in blocks:
            if block in self.free:
                self.free.remove(block)
            self.num_users[block] += 1

    def give_back(self, blocks: Sequence[int]) -> None:
        """One user less for each, the last block first; without a user it goes to the tail, and can still be found."""
        for block in reversed(blocks):
            self.num_users[block] -= 1
            assert self.num_users[block] >= 0, "the twin frees a block twice"
            if self.num_users[block] == 0:
                self.free.append(block)

    def label(self, block: int, tokens: Sequence[int], salt: str) -> None:
        """The block that ends with `tokens` can be found from now on, unless such a block can be already."""
        content = (salt, tuple(tokens))
        if self.is_cached and block not in self.contents and content not in self.contents.values():
            self.contents[block] = content

    def find(self, tokens: Sequence[int], salt: str) -> list[int]:
        """The cached blocks that `tokens` begin with; one token is left over, for it must be computed."""
        found: list[int] = []
        by_content = {content: block for block, content in self.contents.items()}
        while self.is_cached and (len(found) + 1) * self.block_size <= len(tokens) - 1:
            block = by_content.get((salt, tuple(tokens[: (len(found) + 1) * self.block_size])))
            if block is None:
                break
            found.append(block)
        return found

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold so many tokens."""
        num_blocks = 0
        while num_blocks * self.block_size < num_tokens:
            num_blocks += 1
        return num_blocks
