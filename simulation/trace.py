"""A trace: when requests come, and how long they are. What a simulation is driven by."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

DEFAULT_PREFIX_BLOCK_TOKENS = 512


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """One request of a trace. Times since the trace's beginning, lengths in tokens."""

    arrival_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    tenant: str = ""
    priority: int = 0
    deadline_ns: int | None = None
    """After its arrival."""
    prefix_ids: tuple[int, ...] = ()
    """Each names `prefix_block_tokens` tokens: prompts that begin with the same ids begin with the same tokens. What
    the ids do not cover is like no other prompt."""
    prefix_block_tokens: int = DEFAULT_PREFIX_BLOCK_TOKENS
    token_ids: tuple[int, ...] = ()
    """The prompt itself, if the trace has it."""


Trace = Sequence[TraceRequest]
"""In the order of arrival."""


def scaled(trace: Trace, *, speedup: float = 1.0, length_divisor: int = 1) -> list[TraceRequest]:
    """Arrivals `speedup` times as dense, lengths divided (and rounded up, so that none becomes 0).

    Deadlines stay. A prompt that is given as ids keeps the first of them. Raises ValueError for a factor that is not
    above 0.
    """
    if not speedup > 0 or length_divisor < 1:
        raise ValueError(f"the speed-up {speedup} and the divisor of lengths {length_divisor} must be above 0")
    return [
        msgspec.structs.replace(
            request,
            arrival_ns=round(request.arrival_ns / speedup),
            num_prompt_tokens=-(-request.num_prompt_tokens // length_divisor),
            num_output_tokens=-(-request.num_output_tokens // length_divisor),
            prefix_block_tokens=max(1, request.prefix_block_tokens // length_divisor),
            token_ids=request.token_ids[: -(-request.num_prompt_tokens // length_divisor)],
        )
        for request in trace
    ]


def clamped(trace: Trace, *, max_prompt: int | None = None, max_output: int | None = None) -> list[TraceRequest]:
    """Prompts and outputs cut to these lengths; None: as they are."""
    return [
        msgspec.structs.replace(
            request,
            num_prompt_tokens=min(request.num_prompt_tokens, max_prompt or request.num_prompt_tokens),
            num_output_tokens=min(request.num_output_tokens, max_output or request.num_output_tokens),
            token_ids=request.token_ids[:max_prompt],
        )
        for request in trace
    ]
