"""Grammars by XGrammar: a pushdown automaton over characters, in C++.

https://github.com/mlc-ai/xgrammar (Apache-2.0). Importing it loads torch and transformers, for which it has no other
use here, so it takes seconds and some hundred megabytes: it is imported where the topology names the backend.

It leaves out keywords without saying so, and takes some for less than they say. What is taken here are those that it
was found to hold to; all others are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, assert_never

import msgspec
import numpy as np

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import (
    ChoiceFormat,
    Constraint,
    ContentOrCalls,
    GrammarFormat,
    JsonFormat,
    RegexFormat,
    StructureFormat,
    TagsFormat,
)
from .backend import CompiledGrammar, Int32s
from .json_text import MAX_SPACES, JsonValue
from .lark_text import literal
from .reasoning_gate import Gates
from .regex_dialect import rust_regex
from .schema_check import checked_schema
from .schema_keywords import DEFINITIONS, SHAPES, in_map, subschemas
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    import xgrammar

_OF_TYPES = {
    "object": frozenset(("properties", "required", "additionalProperties")),
    "array": frozenset(("items", "prefixItems", "minItems", "maxItems")),
    "string": frozenset(("minLength", "maxLength")),
    "integer": frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
}
"""Type -> the keywords about it that XGrammar holds to, of a schema of this type alone."""
_ALONE = ("enum", "const", "anyOf", "$ref")
"""Those that it holds to where nothing else is said."""
_SAYS_NOTHING = frozenset(
    ("title", "description", "$comment", "$schema", "$id", "default", "examples", "readOnly", "writeOnly", *DEFINITIONS)
)
_REFERENCE = re.compile(r"#(?:/(?:\$defs|definitions)/[A-Za-z0-9_.-]+)?")


class XGrammarBackend:
    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._vocabulary = vocabulary
        self._gates = Gates(vocabulary)
        self._only_ends = vocabulary.mask(vocabulary.eos_token_ids)
        special = frozenset(vocabulary.special_ids)
        tokens = [b"" if token_id in special else data for token_id, data in enumerate(vocabulary.tokens)]
        known = xgrammar.TokenizerInfo(
            tokens,
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=vocabulary.eos_token_ids,
        )
        self._compiler = xgrammar.GrammarCompiler(known, max_threads=1, cache_enabled=False)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """See `GrammarBackend.compile`."""
        try:
            compiled = self._compiled(constraint)
        except (RuntimeError, ValueError) as error:
            raise GrammarRefused(f"XGrammar cannot compile it: {' '.join(str(error).split())[:300]}") from error
        return self._gates.gated(_XGrammarGrammar(compiled, self._vocabulary, self._only_ends), constraint.reasoning)

    def _compiled(self, constraint: Constraint) -> xgrammar.CompiledGrammar:
        match constraint.format:
            case JsonFormat(text):
                schema = checked_schema(text)
                _ensure_held("#", schema)
                encoded = "{}" if schema is True else msgspec.json.encode(schema).decode()
                return self._compiler.compile_json_schema(encoded, strict_mode=False, max_whitespace_cnt=MAX_SPACES)
            case RegexFormat(pattern):
                rust_regex(pattern)  # for what it refuses
                return self._compiler.compile_regex(pattern)
            case ChoiceFormat(choices):
                if not any(choices):
                    raise GrammarRefused("choice has no texts to choose from")
                return self._compiler.compile_grammar("root ::= " + " | ".join(literal(text) for text in choices))
            case GrammarFormat(grammar):
                if "::=" not in grammar:
                    raise GrammarRefused("grammars in Lark's notation are not supported by XGrammar, those in EBNF are")
                return self._compiler.compile_grammar(grammar)
            case TagsFormat() | ContentOrCalls() | StructureFormat():
                raise GrammarRefused("tags, such as those of tool calls, are not supported with the backend xgrammar")
            case _:
                assert_never(constraint.format)


def _ensure_held(place: str, schema: JsonValue) -> None:
    """Raises GrammarRefused for a keyword that XGrammar would not hold to; closes objects whose other keys are free, as
    it takes a named key written with escapes for another one."""
    if not isinstance(schema, dict):
        return
    said = {keyword for keyword in schema if keyword in SHAPES or keyword == "const"} - _SAYS_NOTHING
    kind = schema.get("type")
    alone = said & {*_ALONE}
    held = _OF_TYPES.get(kind, frozenset()) if isinstance(kind, str) else frozenset()
    for keyword in sorted(said - held - {"type"} - (alone if len(said) == 1 else set())):
        of = " of such a schema" if any(keyword in keywords for keywords in _OF_TYPES.values()) or alone else ""
        raise GrammarRefused(f"{place}: {keyword}{of} is not supported by XGrammar")
    if schema.get("enum") == []:
        raise GrammarRefused(f"{place} cannot be satisfied: it contains itself")
    if not _REFERENCE.fullmatch(str(schema.get("$ref", "#"))):
        raise GrammarRefused(f"{place}: $ref to anything but a definition is not supported by XGrammar")
    if "properties" in schema or "required" in schema:
        _close(place, schema)
    for piece, part in subschemas(schema):
        _ensure_held(place + piece, part)
    for keyword in DEFINITIONS:
        for piece, part in in_map(keyword, schema.get(keyword)):
            _ensure_held(place + piece, part)


def _close(place: str, schema: dict[str, JsonValue]) -> None:
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    assert isinstance(properties, dict) and isinstance(required, list), "the schema has been checked"
    for name in (*properties, *map(str, required)):
        if name not in properties or literal(name) != f'"{name}"' or not name.isprintable():
            raise GrammarRefused(f"{place}: the property {name[:100]!r} is not supported by XGrammar")
    if schema.get("additionalProperties", True) not in (True, False):
        raise GrammarRefused(f"{place}: additionalProperties beside properties is not supported by XGrammar")
    schema["additionalProperties"] = False


class _Automaton(Protocol):
    """The part of `xgrammar.GrammarMatcher` that is used."""

    def accept_token(self, token_id: int) -> bool: ...

    def fill_next_token_bitmask(self, bitmask: Int32s, index: int = 0) -> bool: ...

    def rollback(self, num_tokens: int) -> None: ...

    def is_terminated(self) -> bool: ...


class _XGrammarGrammar:
    def __init__(self, compiled: xgrammar.CompiledGrammar, vocabulary: Vocabulary, only_ends: Int32s) -> None:
        self._compiled = compiled
        self._vocabulary = vocabulary
        self._only_ends = only_ends

    def matcher(self) -> XGrammarMatcher:
        import xgrammar

        return XGrammarMatcher(xgrammar.GrammarMatcher(self._compiled), self._vocabulary, self._only_ends)


class XGrammarMatcher:
    """See `Matcher`. The ends of an answer stay here: the automaton gets the text's tokens only."""

    def __init__(self, automaton: _Automaton, vocabulary: Vocabulary, only_ends: Int32s) -> None:
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._eos_token_ids = frozenset(vocabulary.eos_token_ids)
        self._only_ends = only_ends
        self._num_text_tokens = 0
        self._num_ends = 0
        self._mask: Int32s = np.zeros((1, vocabulary.num_mask_words), np.int32)
        self._mask_of: int | None = None
        """The version that the mask is of."""

    @property
    def num_accepted(self) -> int:
        return self._num_text_tokens + self._num_ends

    @property
    def may_end(self) -> bool:
        return self._num_ends > 0 or bool((self._filled() & self._only_ends).any())

    @property
    def is_complete(self) -> bool:
        return self._num_ends > 0 or np.array_equal(self._filled(), self._only_ends)

    def accept(self, token_ids: Sequence[int]) -> int:
        for index, token_id in enumerate(token_ids):
            if not self._takes(token_id):
                return index
        return len(token_ids)

    def _takes(self, token_id: int) -> bool:
        if token_id in self._eos_token_ids:
            may_end = self.may_end
            self._num_ends += may_end
            return may_end
        if self._num_ends or not 0 <= token_id < self._vocabulary.vocab_size or not self._vocabulary.tokens[token_id]:
            return False
        takes = self._automaton.accept_token(token_id)
        self._num_text_tokens += takes
        return takes

    def rollback(self, version: int) -> None:
        assert 0 <= version <= self.num_accepted, "a rollback goes back"
        num_taken_back = max(self._num_text_tokens - version, 0)
        self._num_ends = max(version - self._num_text_tokens, 0)
        if num_taken_back:
            self._automaton.rollback(num_taken_back)
            self._num_text_tokens = version
            self._mask_of = None

    def fill(self, mask: Int32s) -> None:
        mask[:] = self._only_ends if self._num_ends else self._filled()

    def num_valid(self, token_ids: Sequence[int]) -> int:
        version = self.num_accepted
        num_valid = self.accept(token_ids)
        self.rollback(version)
        return num_valid

    def _filled(self) -> Int32s:
        """Of the text so far, int32 [num_mask_words]."""
        if self._mask_of != self._num_text_tokens:
            self._mask[:] = -1
            self._automaton.fill_next_token_bitmask(self._mask)
            if self._vocabulary.vocab_size % 32:
                self._mask.view(np.uint32)[0, -1] &= (1 << self._vocabulary.vocab_size % 32) - 1
            self._mask_of = self._num_text_tokens
        filled: Int32s = self._mask[0]
        return filled
