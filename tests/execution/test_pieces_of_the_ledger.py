"""The memory ledger, which loads no torch, has the sizes of pieces that the worker uses."""

from __future__ import annotations

from callboard.execution import attention, prompt_logprobs
from callboard.kernels import philox, sampling
from callboard.topology import activations


def test_sizes_are_the_same_on_both_sides():
    assert activations.GROUP_ELEMENTS == attention._MAX_GROUP_ELEMENTS
    assert activations._SHORT_LENGTH == attention._SHORT_KV_LEN
    assert activations.SAMPLED_LOGITS == sampling.PIECE_LOGITS
    assert activations.PROMPT_LOGITS == prompt_logprobs.PROMPT_LOGITS
    assert activations._NOISY_TOKENS == philox._CACHED_COUNTERS
