"""How the tokens of one request are chosen. Travels inside `Generate`, `Admit` and `NewRow`; it is no message of its own."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Validated by the frontend; every field has its final value, the seed included."""

    seed: int
    """64-bit seed of the counter-based generator, 0 <= seed < 2**64 (negative seeds were taken modulo 2**64)."""
    temperature: float = 1.0
    """0 is argmax, ties to the lowest id."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set with this probability mass; the token that crosses the border stays."""
    min_p: float = 0.0
    """Keep tokens with at least this share of the most likely token's probability."""
    max_tokens: int | None = None
    """Tokens to generate; None: until the model's length. The tokenizer replaces None before admission."""
    stop: tuple[str, ...] = ()
    """Stop strings; found by the tokenizer actor, not part of the text."""
    ignore_eos: bool = False
    """Go on past the end-of-sequence token (it may still be sampled)."""
    logprobs: int | None = None
    """None: no log-probabilities. k: the sampled token's and those of the k most likely."""
