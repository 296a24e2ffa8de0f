"""Answers that were to have a form: asked for side by side, and judged by jsonschema and by llguidance over bytes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jsonschema
import llguidance

from callboard.tests.e2e.api import Reply, at_once

_BYTES = llguidance.LLTokenizer("byte")
_ANY_WHITE_SPACE = {"whitespace_pattern": r"[ \t\n\r]*"}


class Job(NamedTuple):
    """A request for an answer to a schema."""

    schema: Any
    seed: int
    max_tokens: int
    is_streamed: bool


def body_of(job: Job) -> dict[str, Any]:
    """With a prompt of some length, which differs by seed: chunks, and few shared blocks."""
    prompt = f"{job.seed} asks for an answer to " + json.dumps(job.schema)[:60]
    return {
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 1.5,
        "seed": job.seed,
        "max_tokens": job.max_tokens,
        "stream": job.is_streamed,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": job.schema}},
    }


def told(reply: Reply, job: Job) -> tuple[str, str]:
    """Text and finish reason, whichever way they came."""
    assert reply.status == 200, (job, reply.text)
    if not job.is_streamed:
        (choice,) = reply.json["choices"]
        return choice["message"]["content"] or "", choice["finish_reason"]
    choices = [choice for chunk in reply.chunks for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return text, choices[-1]["finish_reason"]


def check(schema: Any, text: str, reason: str) -> None:
    """A finished answer validates; of one that was cut something valid can still come."""
    assert reason in ("stop", "length"), reason
    if reason == "stop":
        _validate(json.loads(text), schema)
        return
    matcher = _follower(schema)
    if matcher.is_error():  # what it cannot read itself (`minItems: 1.0`): at least JSON can come of it
        matcher = _follower({})
    data = text.removesuffix("\ufffd").encode()
    assert matcher.try_consume_tokens(list(data)) == len(data), (schema, text)


def _validate(answer: Any, schema: Any) -> None:
    """By the newest draft that the schema can be of: `items` may be a list up to 2019, `exclusiveMinimum` true in 4."""
    drafts = (jsonschema.Draft202012Validator, jsonschema.Draft7Validator, jsonschema.Draft4Validator)
    newest = next(draft for draft in drafts if _is_of(schema, draft))
    jsonschema.validate(answer, schema, jsonschema.validators.validator_for(schema, newest))


def _is_of(schema: Any, draft: Any) -> bool:
    try:
        draft.check_schema(schema)
    except jsonschema.SchemaError:
        return False
    return True


def _follower(schema: Any) -> llguidance.LLMatcher:
    grammar = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_ANY_WHITE_SPACE)
    return llguidance.LLMatcher(_BYTES, grammar)


def check_all(send: Callable[..., Reply], url: str, jobs: Sequence[Job]) -> Counter[str]:
    """32 at once; returns how they finished."""

    def ask(job: Job) -> tuple[str, str]:
        return told(send(f"{url}/v1/chat/completions", body_of(job)), job)

    reasons: Counter[str] = Counter()
    for job, (text, reason) in zip(jobs, at_once(ask, jobs), strict=True):
        try:
            check(job.schema, text, reason)
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{job}: {text!r} ({reason}): {error}") from error
        reasons[reason] += 1
    return reasons


def some_schemas() -> Iterator[Any]:
    """Of each kind that clients send one, small enough that a model of noise comes to an end."""
    yield {"type": "integer", "minimum": -12, "maximum": 345}
    yield {"enum": ["red", "green", 3, None, {"deep": [1]}]}
    yield {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5}
    yield {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    yield {"type": "string", "pattern": "^[a-z]{2,5}-[0-9]+$", "maxLength": 9}
    yield {"anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [{"const": 1}], "items": False}]}
    yield {
        "$defs": {
            "node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"const": 0}]}}}
        },
        "$ref": "#/$defs/node",
    }
    yield {"type": "object", "additionalProperties": {"type": "number"}, "maxProperties": 3}
