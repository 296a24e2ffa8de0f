"""Hooks of schemathesis: bodies that only name another model, or ask for very much, would all end the same way."""

from __future__ import annotations

import schemathesis

MAX_TOKENS = 8
MAX_CHOICES = 3


@schemathesis.hook
def map_body(context: object, body: object) -> object:
    """Right values become ones that the engine goes on with; wrong ones stay."""
    if not isinstance(body, dict):
        return body
    changed = dict(body)
    if isinstance(body.get("model"), str):
        changed["model"] = None
    for name, limit, most in (
        ("max_tokens", MAX_TOKENS, None),
        ("max_completion_tokens", MAX_TOKENS, None),
        ("n", MAX_CHOICES, 128),
    ):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > limit and (most is None or value <= most):
            changed[name] = 1 + value % limit
    return changed
