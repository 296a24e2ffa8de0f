"""How the tokens of one request are chosen. Travels inside `Generate`, `Admit` and `NewRow`; it is no message of its own."""

from __future__ import annotations

import msgspec


class RepetitionDetection(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Ends a request whose last tokens are a pattern of `min_pattern_size` to `max_pattern_size` tokens, repeated at
    least `min_count` times."""

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2


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
    presence_penalty: float = 0.0
    """Subtracted from the logit of every token that stands in the output."""
    frequency_penalty: float = 0.0
    """Subtracted from a token's logit once for each time that it stands in the output."""
    repetition_penalty: float = 1.0
    """Divides positive logits of the tokens in prompt and output, multiplies negative ones."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit); ids are distinct."""
    allowed_token_ids: tuple[int, ...] = ()
    """No other token is sampled; empty: all are allowed."""
    bad_words: tuple[str, ...] = ()
    """Texts that are not to be made; the tokenizer replaces them by `bad_token_ids` before admission."""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences whose last token is not sampled where the output ends with the others."""
    min_tokens: int = 0
    """Before so many output tokens nothing ends the request, and tokens that would (`stop_token_ids`, EOS) are not
    sampled."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the request. In a `NewRow`: every token that may not be sampled before `min_tokens`."""
    include_stop_str_in_output: bool = False
    """A stop string that is found stays in the text."""
    skip_special_tokens: bool = True
    """Special tokens have no text."""
    prompt_logprobs: int | None = None
    """None: none. k: log-probabilities of each prompt token but the first, and of the k most likely in its place."""
    processed_logprobs: bool = False
    """`logprobs` are those of the distribution that is sampled from: after bias, penalties, temperature and filters."""
    repetition_detection: RepetitionDetection | None = None

    @property
    def num_entries(self) -> int:
        """Token ids in the lists, which a plan carries beside the tokens of a new row."""
        lists = (self.logit_bias, self.allowed_token_ids, self.stop_token_ids, *self.bad_token_ids)
        return sum(map(len, lists)) + len(self.bad_token_ids)
