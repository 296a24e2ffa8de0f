"""Grammars by llguidance: an Earley parser over lexemes that are derivatives of expressions, in Rust.

https://github.com/guidance-ai/llguidance (MIT). Its matcher works on bytes: a token is allowed if the grammar goes on
over all of its bytes. While it compiles and fills masks other threads run; accepting holds them up for 10 µs a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import llguidance
import msgspec
import numpy as np

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import Constraint, ContentOrCalls, OneFormat, OutputFormat
from .backend import CompiledGrammar, Int32s
from .content_or_calls import content_or_calls
from .llguidance_grammars import lark_grammar
from .reasoning_gate import Gates
from .vocabulary import Vocabulary

_MAX_SENTENCE_CHARS = 400
_PLACE = re.compile(r"^at \d+\(\d+\): (?:failed to compile JSON schema: )?")

_DEAD_END = "NoExtensionBias"
"""llguidance's word where the text is not whole and nothing may follow."""


class WorkLimits(msgspec.Struct, frozen=True):
    """llguidance's own limits; a grammar that exceeds one is refused, or its matcher fails."""

    initial_fuel: int = 1_000_000
    """Of building the lexer; 50,000 take about a millisecond."""
    step_fuel: int = 200_000
    """Of the lexer for one mask; 14,000 take about a millisecond."""
    step_items: int = 50_000
    """Of the parser for one mask; 20,000 take about a millisecond."""
    row_items: int = 2_000
    """Of the parser at one position."""
    lexer_states: int = 100_000
    """Each takes one or two kB."""
    grammar_symbols: int = 500_000


class LLGuidanceBackend:
    def __init__(self, vocabulary: Vocabulary, limits: WorkLimits | None = None) -> None:
        limits = limits or WorkLimits()
        self._vocabulary = vocabulary
        self._gates = Gates(vocabulary)
        self._only_ends = vocabulary.mask(vocabulary.eos_token_ids)
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Tokens(vocabulary)), eos_token=vocabulary.eos_token_ids
        )
        self._limits = llguidance.LLParserLimits(
            initial_lexer_fuel=limits.initial_fuel,
            step_lexer_fuel=limits.step_fuel,
            step_max_items=limits.step_items,
            max_items_in_row=limits.row_items,
            max_lexer_states=limits.lexer_states,
            max_grammar_size=limits.grammar_symbols,
            verbose_errors=False,
        )

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """See `GrammarBackend.compile`."""
        return self._gates.gated(self._compiled(constraint.format), constraint.reasoning)

    def _compiled(self, form: OutputFormat) -> CompiledGrammar:
        if isinstance(form, ContentOrCalls):
            return content_or_calls(form, self._compiled_one, self._vocabulary)
        return self._compiled_one(form)

    def _compiled_one(self, form: OneFormat, begin: str = "") -> LLGuidanceGrammar:
        return self.compile_lark(lark_grammar(form, self._vocabulary, begin))

    def compile_lark(self, grammar: str) -> LLGuidanceGrammar:
        """Raises GrammarRefused."""
        source = llguidance.LLMatcher.grammar_from_lark(grammar)
        matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise GrammarRefused(_sentence(matcher.get_error()))
        return LLGuidanceGrammar(matcher, self._vocabulary, self._only_ends)


class _Tokens:
    """What llguidance reads of a tokenizer."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None

    def __call__(self, text: bytes) -> list[int]:
        raise NotImplementedError("no text is encoded: all grammars have no_forcing")


class LLGuidanceGrammar:
    def __init__(self, fresh: llguidance.LLMatcher, vocabulary: Vocabulary, only_ends: Int32s) -> None:
        self._fresh = fresh
        self._vocabulary = vocabulary
        self._only_ends = only_ends

    def matcher(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._fresh.deep_copy(), self._vocabulary, self._only_ends)


class LLGuidanceMatcher:
    """See `Matcher`. The ends of an answer stay here: llguidance gets the text's tokens only."""

    def __init__(self, matcher: llguidance.LLMatcher, vocabulary: Vocabulary, only_ends: Int32s) -> None:
        self._matcher = matcher
        self._only_ends = only_ends
        self._vocabulary = vocabulary
        self._eos_token_ids = frozenset(vocabulary.eos_token_ids)
        self._num_text_tokens = 0
        self._num_ends = 0
        self._complete_at: int | None = None
        """The version whose mask was found to allow nothing but ends; llguidance notices most of them by itself."""

    @property
    def num_accepted(self) -> int:
        return self._num_text_tokens + self._num_ends

    @property
    def may_end(self) -> bool:
        return self._num_ends > 0 or self._matcher.is_accepting()

    @property
    def is_complete(self) -> bool:
        if self._num_ends > 0 or self._complete_at == self._num_text_tokens:
            return True
        return self._matcher.is_stopped() and self._matcher.is_accepting()

    def accept(self, token_ids: Sequence[int]) -> int:
        num_text = self._num_before_end(token_ids)
        num_taken = 0
        if num_text and not self._num_ends:
            num_taken = self._matcher.try_consume_tokens(list(token_ids[:num_text]))
            self._num_text_tokens += num_taken
            self._check()
        if num_taken == num_text and num_text < len(token_ids) and self.may_end:
            num_ends = self._num_leading_ends(token_ids[num_text:])
            self._num_ends += num_ends
            num_taken += num_ends
        return num_taken

    def rollback(self, version: int) -> None:
        assert 0 <= version <= self.num_accepted, "a rollback goes back"
        num_taken_back = max(self._num_text_tokens - version, 0)
        self._num_ends = max(version - self._num_text_tokens, 0)
        if num_taken_back:
            self._complete_at = None
            self._matcher.rollback(num_taken_back)
            self._num_text_tokens = version
            self._check()

    def fill(self, mask: Int32s) -> None:
        assert mask.shape == (self._vocabulary.num_mask_words,) and mask.flags.c_contiguous
        if self._num_ends:
            mask[:] = self._only_ends
            return
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        if np.array_equal(mask, self._only_ends):
            self._complete_at = self._num_text_tokens

    def num_valid(self, token_ids: Sequence[int]) -> int:
        if self._num_ends:
            return self._num_leading_ends(token_ids)
        num_text = self._num_before_end(token_ids)
        num_ends = self._num_leading_ends(token_ids[num_text:])
        if num_text == 0:
            return num_ends if self.may_end else 0
        # With the first of the ends, as llguidance knows whether there may be one.
        num_valid = self._matcher.validate_tokens(list(token_ids[: num_text + min(num_ends, 1)]))
        self._check()
        return num_text + num_ends if num_ends and num_valid > num_text else min(num_valid, num_text)

    def _num_before_end(self, token_ids: Sequence[int]) -> int:
        """Up to the first that ends an answer or that no model has: such a one llguidance would die of."""
        vocab_size = self._vocabulary.vocab_size
        for index, token_id in enumerate(token_ids):
            if token_id in self._eos_token_ids or not 0 <= token_id < vocab_size:
                return index
        return len(token_ids)

    def _num_leading_ends(self, token_ids: Sequence[int]) -> int:
        for index, token_id in enumerate(token_ids):
            if token_id not in self._eos_token_ids:
                return index
        return len(token_ids)

    def _check(self) -> None:
        if self._matcher.is_error():
            sentence = _sentence(self._matcher.get_error())
            if sentence == _DEAD_END:
                where = "behind what stands there" if self._num_text_tokens else "at all"
                raise GrammarRefused(f"the grammar allows no text {where}")
            raise GrammarRefused(f"the grammar has become too much work: {sentence}")


def _sentence(error: str) -> str:
    """What a client should read of llguidance's message: not its place in a text that we have made."""
    first = error.split("\n<", 1)[0]
    lines = [line.strip() for line in _PLACE.sub("", first).splitlines() if not re.match(r"\s*(\d+ \||\^)", line)]
    return " ".join(line for line in lines if line)[:_MAX_SENTENCE_CHARS]
