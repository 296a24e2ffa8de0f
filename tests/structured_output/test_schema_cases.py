"""Schemas with valid and invalid instances: no invalid one gets through, and valid ones do."""

from __future__ import annotations

import json
from collections import Counter

import jsonschema
import pytest

from callboard.errors import GrammarRefused
from callboard.mailbox.messages.grammar import Constraint, JsonFormat

NAMED = {*jsonschema.Draft202012Validator.VALIDATORS, *jsonschema.Draft7Validator.VALIDATORS, "patternProperty"}
NAMED |= {"satisf", "schema is false"}
"""A refusal names a keyword, or says that the schema allows nothing."""


def in_order(value, schema, root, depth=0):
    """`value` with its keys in the order of `properties`, which is the only one that a grammar takes."""
    schema = dereferenced(schema, root)
    if depth > 40 or not isinstance(schema, dict):
        return value
    if isinstance(value, dict):
        properties = dict(schema.get("properties") or {})
        for keyword in ("allOf", "anyOf", "oneOf"):
            for part in schema.get(keyword) or []:
                part = dereferenced(part, root)
                if isinstance(part, dict):
                    for name, below in (part.get("properties") or {}).items():
                        properties.setdefault(name, below)
        ordered = [name for name in properties if name in value] + [name for name in value if name not in properties]
        others = schema.get("additionalProperties", True)
        return {name: in_order(value[name], properties.get(name, others), root, depth + 1) for name in ordered}
    if isinstance(value, list):
        items = schema.get("items", True)
        first = schema.get("prefixItems") or (items if isinstance(items, list) else [])
        others = items if isinstance(items, dict) else True
        return [in_order(item, first[i] if i < len(first) else others, root, depth + 1) for i, item in enumerate(value)]
    return value


def dereferenced(schema, root):
    for _ in range(20):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            break
        found = root
        for piece in reference[1:].split("/")[1:]:
            name = piece.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else None
        if found is None:
            break
        schema = found
    return schema


def spellings(value, schema):
    value = in_order(value, schema, schema)
    yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    yield json.dumps(value, ensure_ascii=False)
    yield json.dumps(value)
    yield json.dumps(value, indent=4)


def counts_of(cases, compile_bytes, allows) -> Counter:
    """(tier, what) -> how many; an invalid instance that got through fails at once."""
    counts: Counter = Counter()
    for case in cases:
        tier, schema = case["tier"], case["schema"]
        try:
            grammar = compile_bytes(schema)
        except GrammarRefused as refused:
            counts[tier, "refused as it should" if case["compile"] == "error" else "refused"] += 1
            assert refused.status == 400 and any(word in refused.message for word in NAMED), refused.message
            continue
        assert case["compile"] != "error", f"{case['id']} is not refused"
        counts[tier, "taken"] += 1
        for valid in case["valid"]:
            counts[tier, "valid", any(allows(grammar, text) for text in spellings(valid, schema))] += 1
        for text in case["valid_text"]:
            counts[tier, "valid text", allows(grammar, text)] += 1
        for invalid in case["invalid"]:
            counts[tier, "invalid"] += 1
            assert not any(allows(grammar, text) for text in spellings(invalid["v"], schema)), (case["id"], invalid)
        for text in case["invalid_text"]:
            assert not allows(grammar, text), (case["id"], text)
    return counts


def test_own_cases(own_schema_cases, compile_bytes, allows):
    counts = counts_of(own_schema_cases, compile_bytes, allows)
    assert counts["core", "refused as it should"] == 9
    assert counts["core", "refused"] == 2  # propertyNames, and a pattern that looks ahead
    assert counts["core", "valid", False] == 0 < counts["core", "valid", True]
    assert counts["core", "valid text", False] == 0 < counts["core", "valid text", True]


@pytest.mark.slow
def test_all_cases(all_schema_cases, compile_bytes, allows):
    """llguidance 1.9.1 by itself takes 221 of the 232 core schemas, and of their 560 valid instances all."""
    counts = counts_of(all_schema_cases, compile_bytes, allows)
    assert counts["core", "taken"] >= 221
    assert counts["core", "valid", True] >= 560 and counts["core", "valid", False] == 0
    assert counts["core", "refused as it should"] == 9


@pytest.mark.nightly
def test_all_cases_in_tokens_of_a_model(
    all_schema_cases, smollm2_backend, smollm2_tokenizer, smollm2_vocabulary, mask_of
):
    """Through the masks of a vocabulary of 49,152 tokens, which say the same as `accept`."""
    for case in all_schema_cases:
        try:
            grammar = smollm2_backend.compile(Constraint(JsonFormat(json.dumps(case["schema"]))))
        except GrammarRefused:
            continue
        for is_valid, values in ((True, case["valid"]), (False, [invalid["v"] for invalid in case["invalid"]])):
            for value in values:
                passed = []
                for text in spellings(value, case["schema"]):
                    matcher = grammar.matcher()
                    ids = smollm2_tokenizer.encode(text, False)
                    goes_on = all(i in mask_of(matcher, smollm2_vocabulary) and matcher.accept([i]) for i in ids)
                    passed.append(goes_on and matcher.may_end)
                assert any(passed) == is_valid or case["tier"] not in ("core", "hard"), (case["id"], value)
                assert is_valid or not any(passed)
