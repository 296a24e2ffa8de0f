"""A JSON schema before it is compiled: what is malformed or cannot be held to is refused here, by keyword and place.

What remains means the same to the grammar backend as to a validator:

| in the schema                          | here                                                              |
|----------------------------------------|-------------------------------------------------------------------|
| `$ref`                                 | within the schema only                                            |
| `_REFUSED`, such as `not` and `if`     | refused, unless they say nothing (`uniqueItems: false`)           |
| `pattern`, `patternProperties`         | what all dialects agree on (`regex_dialect.py`)                   |
| `format`                               | dates exist in the calendar, no leap seconds                      |
| numbers                                | refused from 2**63 on, and where a double cannot hold them        |
| a schema that requires itself          | as if `false` stood there: nothing finite fulfils it              |
"""

from __future__ import annotations

import re
from typing import cast

import msgspec

from ..errors import GrammarRefused
from .finite_schemas import close_endless
from .json_text import JsonValue
from .regex_dialect import rust_regex
from .schema_formats import narrow_format
from .schema_keywords import DEFINITIONS, SHAPES, WITHOUT_EFFECT, in_map, is_number, is_schema, subschemas
from .schema_references import References

MAX_DEPTH = 100
"""Of brackets in brackets. The backends' parsers take a little more."""
MAX_SCHEMAS = 20_000
"""Schemas within a schema."""
_MAX_NUMBER = 1 << 63

_REFUSED = (
    "not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames",
    "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties",
    "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_CLASS_RUN = re.compile(r"(\[(?:[^\[\]\\]|\\.)*\])\{([1-9]\d*),\d*\}")
_ANY = bool | int | float | str | list[object] | dict[str, object] | None
_CONDITION = ("if", "then", "else")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_ORDERED = (("minLength", "maxLength"), ("minItems", "maxItems"), ("minProperties", "maxProperties"))
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


def checked_schema(text: str) -> JsonValue:
    """The schema in JSON text, an object or a truth value, as the backends take it. Raises GrammarRefused."""
    try:
        schema = cast(JsonValue, msgspec.json.decode(text, type=_ANY))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise GrammarRefused(f"the schema is no JSON: {error}") from error
    if schema is False:
        raise GrammarRefused("the schema is false: it allows nothing")
    if not is_schema(schema):
        raise GrammarRefused("the schema is neither an object nor true or false")
    if _depth_exceeds(schema, MAX_DEPTH):
        raise GrammarRefused(f"the schema is nested deeper than {MAX_DEPTH} levels")
    if isinstance(schema, dict):
        schema.pop("x-guidance", None)  # options of llguidance: they are ours to set
        _Check(schema).run()
    return schema


def _depth_exceeds(root: JsonValue, limit: int) -> bool:
    level = [root]
    for _ in range(limit):
        level = [
            item
            for value in level
            if isinstance(value, list | dict)
            for item in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return False
    return True


class _Check:
    """Looks at what can be reached from the root, and changes it to what the backends take."""

    def __init__(self, root: dict[str, JsonValue]) -> None:
        self._root = root
        self._references = References(root)
        self._has_truth_bounds = any(
            draft in str(root.get("$schema", "draft-04")) for draft in ("draft-03", "draft-04")
        )
        """Whether `exclusiveMinimum` may be true, as in draft 4; of a schema that names no draft it may."""
        self._targets: dict[int, JsonValue] = {}
        """Of schemas with `$ref`, by identity."""
        self._seen: dict[int, dict[str, JsonValue]] = {}
        """All that can be reached, in the order in which they were found."""

    def run(self) -> None:
        waiting: list[tuple[str, JsonValue]] = [("#", self._root)]
        while waiting:
            place, schema = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in self._seen:
                continue
            if len(self._seen) >= MAX_SCHEMAS:
                raise GrammarRefused(f"the schema consists of more than {MAX_SCHEMAS:,} schemas")
            self._seen[id(schema)] = schema
            self._check(place, schema)
            waiting += [(place + piece, item) for piece, item in subschemas(schema)]
            if isinstance(reference := schema.get("$ref"), str):
                target = self._references.target(schema, reference, place)
                self._targets[id(schema)] = target
                waiting.append((reference if reference.startswith("#") else f"{place}/$ref", target))
        self._check_definitions()
        close_endless(self._root, list(self._seen.values()), self._targets)

    def _check_definitions(self) -> None:
        """Of definitions that nothing refers to, the shape at least."""
        for keyword in DEFINITIONS:
            for piece, schema in in_map(keyword, self._root.get(keyword)):
                if isinstance(schema, dict) and id(schema) not in self._seen:
                    _check_shapes(f"#{piece}", schema)

    def _check(self, place: str, schema: dict[str, JsonValue]) -> None:
        _check_shapes(place, schema)
        for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
            if isinstance(schema.get(keyword), bool) and not self._has_truth_bounds:
                raise GrammarRefused(f"{place}: {keyword} has to be a number")
        self._drop_without_effect(schema)
        for keyword in _REFUSED:
            if keyword in schema:
                raise GrammarRefused(f"{place}: {keyword} is not supported")
        _check_sizes(place, schema)
        _check_numbers(place, schema)
        _rewrite_patterns(place, schema)
        narrow_format(place, schema)

    def _drop_without_effect(self, schema: dict[str, JsonValue]) -> None:
        for keyword, says_nothing in WITHOUT_EFFECT.items():
            if keyword in schema and says_nothing(schema[keyword]):
                del schema[keyword]
        if "if" not in schema or not ("then" in schema or "else" in schema):
            for keyword in _CONDITION:
                schema.pop(keyword, None)
        if "contains" not in schema:
            for keyword in ("minContains", "maxContains"):
                schema.pop(keyword, None)


def _check_shapes(place: str, schema: dict[str, JsonValue]) -> None:
    for keyword, value in schema.items():
        wanted, fits = SHAPES.get(keyword, ("", None))
        if fits is not None and not fits(value):
            raise GrammarRefused(f"{place}: {keyword} has to be {wanted}")


def _check_sizes(place: str, schema: dict[str, JsonValue]) -> None:
    for keyword in _COUNTS:
        value = schema.get(keyword)
        if isinstance(value, float):
            schema[keyword] = int(value)
    for least, most in _ORDERED:
        low, high = schema.get(least), schema.get(most)
        if is_number(low) and is_number(high) and low > high and "type" in schema:
            raise GrammarRefused(f"{place} cannot be satisfied: {least} {low} is more than {most} {high}")
    num_least, required = schema.get("minProperties"), schema.get("required")
    num_required = len(required) if isinstance(required, list) else 0
    if is_number(num_least) and num_least <= num_required:
        del schema["minProperties"]  # says no more, and the backends know it in few places
    low, high = schema.get("minimum"), schema.get("maximum")
    if is_number(low) and is_number(high) and low > high and "type" in schema:
        raise GrammarRefused(f"{place} cannot be satisfied: minimum {low} is more than maximum {high}")


def _check_numbers(place: str, schema: dict[str, JsonValue]) -> None:
    for keyword in _NUMBERS:
        _check_number(f"{place}: {keyword}", schema.get(keyword))
    waiting: list[tuple[str, JsonValue]] = [(keyword, schema.get(keyword)) for keyword in ("const", "enum")]
    while waiting:
        keyword, value = waiting.pop()
        _check_number(f"{place}: {keyword}", value)
        if isinstance(value, list | dict):
            waiting += [(keyword, item) for item in (value.values() if isinstance(value, dict) else value)]


def _check_number(what: str, value: JsonValue) -> None:
    if not is_number(value):
        return
    if abs(value) >= _MAX_NUMBER:
        raise GrammarRefused(f"{what}: numbers from 2**63 on are not supported")
    if isinstance(value, int) and int(float(value)) != value:
        raise GrammarRefused(f"{what}: {value} is an integer that a double cannot hold")


def _rewrite_patterns(place: str, schema: dict[str, JsonValue]) -> None:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        schema["pattern"] = _rewritten(f"{place}: pattern", pattern)
    properties = schema.get("patternProperties")
    if isinstance(properties, dict):
        rewritten = {_rewritten(f"{place}: patternProperties", name): item for name, item in properties.items()}
        if len(rewritten) < len(properties):
            raise GrammarRefused(f"{place}: patternProperties has two spellings of one expression")
        schema["patternProperties"] = rewritten


def _rewritten(what: str, pattern: str) -> str:
    try:
        rewritten = rust_regex(pattern)
    except GrammarRefused as refused:
        raise GrammarRefused(f"{what}: {refused.message}") from refused
    # A text that holds one to 255 of these holds one, which is far less work.
    found = _CLASS_RUN.fullmatch(rewritten)
    return rewritten if found is None else f"{found[1]}{{{found[2]}}}"
