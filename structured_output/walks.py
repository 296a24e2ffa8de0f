"""Random answers of a grammar: what is too much work for masks shows up while they are made."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
        picked = choice.choice(allowed_ids(mask), 1 + 8 * (seed % 2)).tolist()
        token_id = min(picked, key=lambda i: len(vocabulary.tokens[i]))
        num_taken = matcher.accept((token_id,))
        assert num_taken == 1, "what a mask allows is accepted"
        taken.append(token_id)
        if token_id in ends:
            break
    return taken


def allowed_ids(mask: Int32s) -> npt.NDArray[np.int64]:
    """int64 [number of tokens that the mask allows], ascending."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
