"""Random answers of a grammar: what is too much work for masks shows up while they are made."""

from __future__ import annotations

import numpy as np

from .backend import CompiledGrammar, Int32s
from .vocabulary import Vocabulary

NUM_TOKENS = 24
"""Of a walk that does not end before."""
NUM_WALKS = 3


def walk(grammar: CompiledGrammar, vocabulary: Vocabulary, seed: int) -> list[int]:
    """Tokens that the grammar allows one behind the other, the end of the answer included if it came to it.

    An odd seed prefers short tokens, which meet more of a grammar's forks. Raises GrammarRefused.
    """
    choice = np.random.Generator(np.random.PCG64(seed))
    matcher = grammar.matcher()
    mask = np.zeros(vocabulary.num_mask_words, np.int32)
    ends = frozenset(vocabulary.eos_token_ids)
    taken: list[int] = []
    while len(taken) < NUM_TOKENS:
        matcher.fill(mask)
        picked = _some_allowed(mask, 1 + 8 * (seed % 2), choice)
        token_id = min(picked, key=lambda i: len(vocabulary.tokens[i]))
        num_taken = matcher.accept((token_id,))
        assert num_taken == 1, "what a mask allows is accepted"
        taken.append(token_id)
        if token_id in ends:
            break
    return taken


def _some_allowed(mask: Int32s, count: int, choice: np.random.Generator) -> list[int]:
    """So many of the tokens that the mask allows, some of them, drawn word by word: all bits of a large vocabulary take
    longer to unpack than the mask to make."""
    picked = []
    for word in choice.choice(np.flatnonzero(mask), count).tolist():
        bits = int(mask[word]) & 0xFFFFFFFF
        for _ in range(int(choice.integers(bits.bit_count()))):
            bits &= bits - 1  # without the lowest one
        picked.append(32 * word + (bits & -bits).bit_length() - 1)
    return picked
