"""The masks of one row: transformers' processors say which ids are forbidden; contradictions leave what is allowed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MinNewTokensLengthLogitsProcessor, NoBadWordsLogitsProcessor

from callboard.execution.row_logits import RowLogits, has_row_logits
from callboard.mailbox.messages.sampling import SamplingParams

VOCAB = 11
PROMPT = np.array([1, 2, 3], np.int32)


def masks(output, vocab_size=VOCAB, **sampling):
    """(allowed ids or None, forbidden ids) as sets."""
    row = RowLogits(SamplingParams(seed=0, **sampling), PROMPT, vocab_size)
    allowed, forbidden = row.masks_at(np.array(output, np.int32))
    return set(allowed.tolist()) or None, set(forbidden.tolist())


def forbidden_by(processor, output):
    """Ids to which a processor of transformers gives -inf."""
    tokens = torch.tensor([output], dtype=torch.int64)
    return set(torch.isinf(processor(tokens, torch.zeros(1, VOCAB)))[0].nonzero()[:, 0].tolist())


sequences = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6)


@settings(deadline=None)
@given(bad=sequences, output=st.lists(st.integers(0, 3), max_size=12))
def test_bad_sequences_equal_transformers(bad, output):
    expected = forbidden_by(NoBadWordsLogitsProcessor(bad, eos_token_id=None), output)
    assert masks(output, bad_token_ids=tuple(map(tuple, bad))) == (None, expected)


def test_bad_sequences_look_at_the_output_alone():
    assert masks([], bad_token_ids=((2, 3, 7),)) == (None, set())
    assert masks([3], bad_token_ids=((2, 3, 7),)) == (None, set())
    assert masks([2, 3], bad_token_ids=((2, 3, 7),)) == (None, {7})


@pytest.mark.parametrize("length", range(6))
def test_min_tokens_equal_transformers(length):
    output = [4] * length
    processor = MinNewTokensLengthLogitsProcessor(PROMPT.size, 4, [7, 9])
    expected = forbidden_by(processor, [*PROMPT.tolist(), *output])
    assert masks(output, min_tokens=4, stop_token_ids=(7, 9)) == (None, expected)


def test_allowed_ids_lose_what_is_forbidden():
    sampling = {"allowed_token_ids": (3, 7, 5), "bad_token_ids": ((5,), (1, 7))}
    assert masks([2], **sampling) == ({3, 7}, set())
    assert masks([1], **sampling) == ({3}, set())


def test_where_nothing_is_left_only_what_is_allowed_counts():
    assert masks([], allowed_token_ids=(7,), min_tokens=2, stop_token_ids=(7, 9)) == ({7}, set())
    assert masks([1], allowed_token_ids=(7, 3), bad_token_ids=((7,), (1, 3))) == ({7, 3}, set())


def test_where_every_token_is_forbidden_none_is():
    everything = tuple((token,) for token in range(VOCAB))
    assert masks([], bad_token_ids=everything) == (None, set())
    assert masks([], bad_token_ids=everything[1:]) == (None, set(range(1, VOCAB)))
    assert masks([], bad_token_ids=everything[1:], min_tokens=1, stop_token_ids=(0,)) == (None, set())
    assert masks([4], bad_token_ids=everything[1:], min_tokens=1, stop_token_ids=(0,)) == (None, set(range(1, VOCAB)))


def test_ids_outside_the_vocabulary_are_left_out():
    row = RowLogits(SamplingParams(seed=0, logit_bias=((3, 1.5), (VOCAB, 2.0), (-1, 2.0))), PROMPT, VOCAB)
    assert (row.bias_ids.tolist(), row.bias.tolist()) == ([3], [1.5])
    assert masks([], allowed_token_ids=(VOCAB, 2)) == ({2}, set())
    assert masks([2], bad_token_ids=((VOCAB,), (2, VOCAB), (-5,))) == (None, set())


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temperature": 0.3, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "logprobs": 3, "prompt_logprobs": 1}, False),
        ({"stop_token_ids": (3,)}, False),
        ({"min_tokens": 5}, False),
        ({"min_tokens": 5, "stop_token_ids": (3,)}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"repetition_penalty": 0.9}, True),
        ({"logit_bias": ((1, 0.0),)}, True),
        ({"allowed_token_ids": (1,)}, True),
        ({"bad_token_ids": ((1, 2),)}, True),
    ],
)
def test_only_rows_that_change_logits_are_kept(sampling, expected):
    assert has_row_logits(SamplingParams(seed=0, **sampling)) is expected
