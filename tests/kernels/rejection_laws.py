"""Cases of the acceptance rule over few tokens, with the law that their tokens have; the rule with a planted bug."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from callboard.kernels import rejection
from callboard.kernels.sampling import SamplingBatch, sample
from callboard.tests.kernels.sampling_laws import filtered_law, g_test
from callboard.tests.kernels.test_sampling_statistics import make_batch

NUM_DRAWS = 200_000
Verify = Callable[[Tensor, SamplingBatch, Tensor, Tensor | None], Tensor]


class Case(NamedTuple):
    """What the target has, and what is proposed."""

    p: tuple[float, ...]
    """Probabilities at temperature 1, before filters."""
    draft: int = -1
    """The draft, if it is always the same."""
    q: tuple[float, ...] = ()
    """What it is drawn from, if it is."""
    filters: Mapping[str, float] = MappingProxyType({})

    @property
    def logits(self) -> list[float]:
        return [math.log(p) if p else -math.inf for p in self.p]

    @property
    def law(self) -> dict[int, float]:
        return filtered_law(dict(enumerate(self.logits)), **self.filters)

    @property
    def accepted_share(self) -> float:
        """Sum of min(p, q) over all tokens."""
        if not self.q:
            return self.law[self.draft]
        return sum(min(self.law[token], q) for token, q in enumerate(self.q))


FOUR, EIGHT = (0.5, 0.3, 0.15, 0.05), (0.3, 0.02, 0.2, 0.08, 0.11, 0.15, 0.05, 0.09)
OTHER_EIGHT = (0.05, 0.2, 0.02, 0.3, 0.11, 0.08, 0.15, 0.09)
ALL_FILTERS = [
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 3},
    {"top_p": 0.7},
    {"min_p": 0.3},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
]
CASES = {
    "two tokens, the draft is likely": Case((0.9, 0.1), draft=0),
    "two tokens, the draft is unlikely": Case((0.9, 0.1), draft=1),
    "two tokens, q": Case((0.6, 0.4), q=(0.2, 0.8)),
    "three tokens": Case((0.2, 0.5, 0.3), draft=2),
    "the draft is impossible": Case((0.5, 0.0, 0.5), draft=1),
    "the draft alone is possible": Case((0.0, 1.0, 0.0), draft=1),
    "four tokens, q near p": Case(FOUR, q=(0.45, 0.35, 0.12, 0.08)),
    "four tokens, q the other way round": Case(FOUR, q=FOUR[::-1]),
    "four tokens, q is p": Case(FOUR, q=FOUR),
    "q is even": Case(EIGHT, q=(0.125,) * 8),
    "q is one token": Case(EIGHT, q=(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    "q where p has nothing": Case((0.0, 0.6, 0.4, 0.0), q=(0.4, 0.3, 0.1, 0.2)),
    "p where q has nothing": Case((0.25, 0.25, 0.3, 0.2), q=(0.0, 0.5, 0.5, 0.0)),
    "p and q have nothing in common": Case((0.5, 0.5, 0.0, 0.0), q=(0.0, 0.0, 0.3, 0.7)),
    "eight tokens, q": Case(EIGHT, q=OTHER_EIGHT),
    **{f"a draft that is kept, {filters}": Case(EIGHT, draft=2, filters=filters) for filters in ALL_FILTERS},
    **{f"a draft that is cut or not, {filters}": Case(EIGHT, draft=3, filters=filters) for filters in ALL_FILTERS},
    **{f"q, {filters}": Case(EIGHT, q=OTHER_EIGHT, filters=filters) for filters in ALL_FILTERS},
}


def draw(case: Case, verify: Verify = rejection.verify, n: int = NUM_DRAWS) -> tuple[Tensor, Tensor]:
    """(tokens, drafts), int64 [n] each, one a seed. What is drawn from q is so with the noise that the target samples
    with: a proposer may well use the same seeds."""
    batch = make_batch(n, **case.filters)
    logits = torch.tensor([case.logits]).expand(n, -1)
    if not case.q:
        drafts = torch.full((n,), case.draft)
        return verify(logits, batch, drafts, None), drafts
    q = torch.tensor([case.q]).expand(n, -1)
    drafts = sample(q.log(), make_batch(n))
    return verify(logits, batch, drafts, q), drafts


def p_value(case: Case, verify: Verify = rejection.verify) -> float:
    return g_test(Counter(draw(case, verify)[0].tolist()), case.law)


def planted(old: str, new: str) -> ModuleType:
    """`kernels.rejection` with another text in one place."""
    source = inspect.getsource(rejection)
    assert source.count(old) == 1, old
    module = ModuleType(rejection.__name__)
    module.__package__ = rejection.__package__
    exec(compile(source.replace(old, new), "planted", "exec"), vars(module))
    return module


class Chain(NamedTuple):
    """A model whose next token depends on the last one."""

    logits: Tensor
    """float32 [V + 1, V]: behind each token; the last row is of the first token."""

    @staticmethod
    def make(vocab_size: int, seed: int) -> Chain:
        rng = np.random.default_rng(seed)
        return Chain(torch.from_numpy(rng.normal(0, 1.2, (vocab_size + 1, vocab_size)).astype(np.float32)))

    def law(self, length: int, **filters: float) -> dict[int, float]:
        """Probability of each text of so many tokens, as a number in base V."""
        vocab_size = self.logits.shape[1]
        steps = [filtered_law(dict(enumerate(row)), **filters) for row in self.logits.double().tolist()]
        law = {(): 1.0}
        for _ in range(length):
            law = {
                (*text, token): probability * steps[text[-1] if text else vocab_size][token]
                for text, probability in law.items()
                for token in range(vocab_size)
            }
        return {sum(token * vocab_size**place for place, token in enumerate(text[::-1])): p for text, p in law.items()}
