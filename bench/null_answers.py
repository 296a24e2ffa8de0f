"""The null device's answers, computed from nothing but the request: what a load through it is checked against.

A second writing of `execution.null_tokens`, in plain integers and without rows, blocks or steps.
"""

from __future__ import annotations

from collections.abc import Sequence

_MASK = (1 << 64) - 1


class NullDevice:
    """visible_ids: tokens with text that are not special, ascending, below the model's vocabulary size."""

    def __init__(self, visible_ids: Sequence[int], eos_token_id: int | None) -> None:
        self._visible_ids, self._eos_token_id = visible_ids, eos_token_id

    def answer(
        self, prompt_ids: Sequence[int], num_tokens: int, *, seed: int | None = None, choice: int = 0
    ) -> list[int]:
        """The `num_tokens` tokens that follow the prompt, end-of-sequence tokens among them. seed: None at temperature
        0."""
        key = 0 if seed is None else _mix(seed + choice * 0x9E3779B97F4A7C15)
        total = sum(_trace(token, position) for position, token in enumerate(prompt_ids))
        tokens: list[int] = []
        while len(tokens) < num_tokens:
            draw = _mix(total + key)
            is_end = draw >> 54 == 0 and self._eos_token_id is not None
            token = self._eos_token_id if is_end else self._visible_ids[draw % len(self._visible_ids)]
            assert token is not None
            total += _trace(token, len(prompt_ids) + len(tokens))
            tokens.append(token)
        return tokens


def _trace(token: int, position: int) -> int:
    return _mix(token << 32 | position)


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
