"""Tokens behind drafts by rejection have the target's law: 200,000 draws each, of fixed seeds, so that what holds once
holds always. Laws come from `sampling_laws`; bugs that are planted are found."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.kernels import rejection
from callboard.kernels.rejection import NO_DRAFT, sample_or_verify, verify
from callboard.kernels.sampling import sample
from callboard.speculative.acceptance import count_accepted, drafts_of_places
from callboard.tests.kernels.rejection_laws import ALL_FILTERS, CASES, NUM_DRAWS, Case, Chain, draw, p_value, planted
from callboard.tests.kernels.sampling_laws import ALPHA, g_test
from callboard.tests.kernels.test_sampling_statistics import make_batch

BY_NIGHT = {name for name in CASES if name.startswith("a draft that is")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in BY_NIGHT else ()) for name in CASES]
)
def test_tokens_have_the_law_of_the_target_and_drafts_the_share(name):
    case = CASES[name]
    tokens, drafts = draw(case)
    counts = Counter(tokens.tolist())
    assert set(counts) <= {token for token, p in case.law.items() if p}  # the filters' support
    assert g_test(counts, case.law) > ALPHA
    share = case.accepted_share
    accepted = int((tokens == drafts).sum())
    assert abs(accepted - share * NUM_DRAWS) <= 3 * math.sqrt(NUM_DRAWS * share * (1 - share)) + 1e-6 * NUM_DRAWS


def test_drafts_from_the_target_itself_are_all_accepted():
    for filters in [{}, *ALL_FILTERS]:
        case = Case(CASES["eight tokens, q"].p, filters=filters)
        tokens, drafts = draw(case._replace(q=tuple(case.law.values())))
        # p and q are one number, rounded in two ways: a draft in millions is on the other side
        assert int((tokens != drafts).sum()) <= 2, filters


def test_what_neither_target_nor_proposer_has_is_never_accepted():
    logits = torch.tensor([[0.0, -math.inf, 1.0]]).expand(1000, -1)
    q = torch.tensor([[0.5, 0.0, 0.5]]).expand(1000, -1)
    drafts = torch.ones(1000, dtype=torch.int64)
    assert 1 not in verify(logits, make_batch(1000), drafts, q).tolist()


def test_a_proposer_that_claims_more_than_there_is_gets_the_likeliest_token():
    """q above p everywhere: nothing is left of p."""
    logits = torch.tensor([[0.0, -math.inf, 1.0]]).expand(1000, -1)
    drafts = torch.ones(1000, dtype=torch.int64)
    assert set(verify(logits, make_batch(1000), drafts, torch.full((1000, 3), 2.0)).tolist()) == {2}
    drafts = torch.zeros(1000, dtype=torch.int64)
    assert set(verify(logits, make_batch(1000), drafts, torch.full((1000, 3), 2.0)).tolist()) == {0}


@settings(max_examples=25)
@given(rng=st.integers(0, 2**32).map(np.random.default_rng), vocab_size=st.sampled_from([1, 2, 7, 300]))
def test_greedy_rows_and_rows_without_drafts_are_as_ever(rng, vocab_size):
    """A greedy row's token is the arg max, so that a draft is accepted only if it is; whatever stands beside it."""
    n = 12
    logits = torch.from_numpy(rng.normal(0, 3, (n, vocab_size)).astype(np.float32))
    batch = make_batch(n, int(rng.integers(1000)), top_k=int(rng.integers(3)))
    is_greedy = torch.from_numpy(rng.random(n) < 0.4)
    batch.temperature[is_greedy] = 0.0
    drafts = torch.from_numpy(rng.integers(-1, vocab_size, n))
    tokens = sample_or_verify(logits, batch, drafts)
    assert torch.equal(tokens[is_greedy], logits[is_greedy].argmax(1))
    is_free = drafts == NO_DRAFT
    assert torch.equal(tokens[is_free], sample(logits, batch)[is_free])
    for i in ((~is_greedy) & (~is_free)).nonzero()[:, 0].tolist():  # each as it is alone
        one = torch.tensor([i])
        assert tokens[i] == verify(logits[one], batch.take(one), drafts[one])[0]
    assert torch.equal(sample_or_verify(logits, None, drafts), logits.argmax(1))


# Texts


def texts(chain, length, *, draft_of=None, q=None, module=rejection, **filters):
    """Counts of texts, as `Chain.law` has them: steps verify as many drafts as there is room for, until all is there.
    draft_of: int64 [V + 1], what is guessed behind each token; q: float32 [V + 1, V], what it is drawn from instead."""
    vocab_size, seeds = chain.logits.shape[1], torch.arange(NUM_DRAWS)
    tokens = torch.full((NUM_DRAWS, length + 1), vocab_size)  # the first one stands for the prompt
    num_tokens = torch.zeros(NUM_DRAWS, dtype=torch.int64)
    for start in range(length):
        rows = (num_tokens == start).nonzero()[:, 0]
        behind, drawn, num_places = [tokens[rows, start]], [], length - start
        for place in range(num_places):
            numbers = {"seeds": seeds[rows], "index": start + place}
            batch, last = make_batch(rows.numel(), **numbers, **filters), behind[-1]
            if place == num_places - 1:
                drawn.append(sample(chain.logits[last], batch))
                continue
            behind.append(draft_of[last] if q is None else sample(q[last].log(), make_batch(rows.numel(), **numbers)))
            drawn.append(module.verify(chain.logits[last], batch, behind[-1], None if q is None else q[last]))
        flat, counts = torch.stack(drawn, 1), np.full(rows.numel(), num_places, np.int32)
        stands = torch.stack([*behind[1:], behind[0]], 1).reshape(-1).numpy().astype(np.int32)
        drafts = drafts_of_places(stands, counts)
        taken = torch.from_numpy(count_accepted(flat.reshape(-1).numpy(), drafts, counts))
        for place in range(num_places):
            is_taken = taken > place
            tokens[rows[is_taken], 1 + start + place] = flat[is_taken, place]
        num_tokens[rows] += taken
    assert (num_tokens == length).all()
    weights = vocab_size ** torch.arange(length - 1, -1, -1)
    return Counter((tokens[:, 1:] * weights).sum(1).tolist())


CHAIN = Chain.make(5, seed=1)
OTHER = Chain.make(5, seed=2).logits.softmax(1)
LIKELIEST = CHAIN.logits.argmax(1)
TEXTS = {
    "likeliest": {"draft_of": LIKELIEST},
    "likeliest, filters": {"draft_of": LIKELIEST, "top_k": 3},
    "always the same": {"draft_of": torch.full((6,), 1)},
    "drawn": {"q": OTHER},
    "drawn, filters": {"q": OTHER, "temperature": 0.8, "top_p": 0.9},
    "drawn from something near": {"q": (CHAIN.logits * 0.7).softmax(1)},
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_have_the_law_of_the_target(name):
    """Triples, and so pairs, also over the border of two steps."""
    wanted = TEXTS[name]
    filters = {key: value for key, value in wanted.items() if key not in ("draft_of", "q")}
    counts, law = texts(CHAIN, 3, **wanted), CHAIN.law(3, **filters)
    assert set(counts) <= {text for text, p in law.items() if p}
    assert g_test(counts, law) > ALPHA


# Bugs

PLANTED = {
    "the rest is p itself": (
        "(p[rejected] - proposed[rejected]).clamp_(min=0).log_()",
        "p[rejected].log()",
        "q is even",
    ),
    "a rejected draft may be drawn": ("rest.scatter_(1, drafts[rejected, None], -torch.inf)", "pass", "three tokens"),
    "accepted by p alone": ("u * q_draft <= p_draft", "u <= p_draft", "eight tokens, q"),
    "accepted by q alone": ("u * q_draft <= p_draft", "u * q_draft <= 0.3", "four tokens, q near p"),
    "never accepted": ("(u * q_draft <= p_draft) & (p_draft > 0)", "(u > 2)", "two tokens, the draft is likely"),
    "always accepted": ("(u * q_draft <= p_draft) & (p_draft > 0)", "(u > -1)", "two tokens, the draft is likely"),
    "the number of the draw": ("drafts, ACCEPT)", "drafts, 0)", "four tokens, q near p"),
    "the noise of the draw": ("rest.shape[1], RESIDUAL)", "rest.shape[1], 0)", "eight tokens, q"),
    "no filters": ("processed = processed_logits(logits, batch)", "processed = logits.clone()", "q, {'top_k': 3}"),
}
"""Name -> (text, what stands there instead, the case that finds it)."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found(name):
    old, new, case = PLANTED[name]
    assert p_value(CASES[case], planted(old, new).verify) < ALPHA
    assert p_value(CASES[case]) > ALPHA


@pytest.mark.parametrize("which", ["batch.indexes, batch.choices, drafts", "parameters.indexes, parameters.choices"])
def test_numbers_that_positions_share_are_found_in_texts(which):
    module = planted(which, which.replace("indexes", "indexes * 0"))
    assert g_test(texts(CHAIN, 3, module=module, **TEXTS["always the same"]), CHAIN.law(3)) < ALPHA
