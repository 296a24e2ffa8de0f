"""A request's ledger as JSON: the scheduler's part of it, between the server's own.

The parts of a choice follow one another without a gap, so they add up to its time from the request's head to its end
at the client, or to now:

    receive_s + tokenize_s + the sum of waiting_s + prefill_s + decode_s + deliver_s + unknown_s = total_s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from ..mailbox.messages.requests import Explanation, PreemptionRecord, RequestLedger, WaitTime
from .request_records import RequestRecord

NOT_YET_QUEUED = "tokenizing"
"""The state of a choice that has not come to the scheduler."""
FORGOTTEN = "forgotten"
"""The state of a choice that has ended, and of which the scheduler knows nothing."""


class WaitingSeconds(msgspec.Struct, frozen=True):
    """How long a choice waited, by what it waited for."""

    budget: float = 0.0
    """The tokens of the step were used up."""
    sequences: float = 0.0
    """All rows were taken (max_num_seqs)."""
    blocks: float = 0.0
    """KV blocks were short."""
    grammar: float = 0.0
    adapter: float = 0.0
    remote_kv: float = 0.0
    input: float = 0.0
    """A session's client."""
    priority: float = 0.0
    """Requests that came later went first."""
    worker: float = 0.0
    """No worker was there, or requests were on trial."""


class PreemptionObject(msgspec.Struct, frozen=True):
    """A time at which a choice lost its row, and with it so many computed tokens."""

    step: int
    cause: str
    lost_tokens: int


class ChoiceExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """One choice: where it is, and where its time went."""

    index: int
    state: str
    waits_for: str | None = None
    """null: it does not wait."""
    finish_reason: str | None = None
    """As far as the server has read."""
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0
    receive_s: float
    """From the request's head until its body was read and understood."""
    tokenize_s: float = 0.0
    """Until it came to the scheduler; after a death of that, to its successor."""
    waiting_s: WaitingSeconds = WaitingSeconds()
    prefill_s: float = 0.0
    decode_s: float = 0.0
    deliver_s: float = 0.0
    """From its end in the engine until the client had it: text, transport, and a client that reads slowly."""
    unknown_s: float = 0.0
    """Of a choice that has ended: it never came to the scheduler, or so long ago that it is forgotten (max_ledgers)."""
    total_s: float
    chunks: tuple[int, ...] = ()
    preemptions: tuple[PreemptionObject, ...] = ()
    recomputed_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    num_chunks: int = 0
    """With those that are not told."""
    num_preemptions: int = 0
    """With those that are not told."""


class RequestObject(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/requests/{request_id}."""

    id: str
    object: Literal["request"] = "request"
    x_request_id: str | None = None
    state: str
    total_s: float
    """From its head to its end, or to now."""
    write_s: float = 0.0
    """Of a stream: how long what was made waited for the client's connection to take it."""
    choices: list[ChoiceExplanation]
    choices_left_out: int = 0
    """Of very many prompts or choices the first are told."""


class LiveRequest(msgspec.Struct, frozen=True):
    """A request that has not ended."""

    id: str
    x_request_id: str
    state: str
    age_s: float
    num_choices: int
    completion_tokens: int


class RequestList(msgspec.Struct, frozen=True):
    """The answer of GET /v1/requests."""

    data: list[LiveRequest]
    object: Literal["list"] = "list"


def listed(record: RequestRecord, now_ns: int) -> LiveRequest:
    """A line of the list."""
    return LiveRequest(
        record.request_id,
        record.header_id,
        record.state,
        _seconds(now_ns - record.arrival_ns),
        len(record.choices),
        record.num_tokens,
    )


def explained(record: RequestRecord, explanations: Sequence[Explanation]) -> RequestObject:
    """What the server and the scheduler know together; an Explanation for each of the prompts, or of the first ones."""
    choices = []
    for prompt, explanation in enumerate(explanations):
        ledgers = {ledger.choice: ledger for ledger in explanation.choices}
        for choice in range(max(ledgers) + 1 if _num_left_out(explanation) else record.num_choices):
            index = prompt * record.num_choices + choice
            choices.append(_choice(record, index, ledgers.get(choice), explanation.now_ns))
    now_ns = max(explanation.now_ns for explanation in explanations)
    until_ns = now_ns if record.ended_ns is None else record.ended_ns
    return RequestObject(
        id=record.request_id,
        x_request_id=record.header_id,
        state=record.state,
        total_s=_seconds(until_ns - record.arrival_ns),
        write_s=_seconds(record.write_ns(until_ns)),
        choices=choices,
        choices_left_out=len(record.choices) - len(choices),
    )


def explained_by_scheduler(request_id: str, explanation: Explanation) -> RequestObject:
    """Of a request that another frontend has: how long it took that is not known."""
    ends = [ledger.ended_ns for ledger in explanation.choices]
    until_ns = max(explanation.now_ns if end_ns is None else end_ns for end_ns in ends)
    first_ns = min(ledger.arrival_ns for ledger in explanation.choices)
    return RequestObject(
        id=request_id,
        state="live" if None in ends else "ended",
        total_s=_seconds(until_ns - first_ns),
        choices=[
            _with_ledger(
                ledger, explanation.now_ns if ledger.ended_ns is None else ledger.ended_ns, ledger.choice, 0, None
            )
            for ledger in explanation.choices
        ],
        choices_left_out=_num_left_out(explanation),
    )


def _num_left_out(explanation: Explanation) -> int:
    """Choices that the scheduler knows and does not tell: the last ones."""
    return explanation.choices[0].num_choices_left_out if explanation.choices else 0


def _choice(record: RequestRecord, index: int, ledger: RequestLedger | None, now_ns: int) -> ChoiceExplanation:
    own = record.choices[index]
    end_ns = own.sent_ns or record.ended_ns
    if ledger is None:
        return _without_ledger(record, index, end_ns, now_ns)
    receive_ns = ledger.arrival_ns - record.arrival_ns
    return _with_ledger(ledger, now_ns if end_ns is None else end_ns, index, receive_ns, own.finish_reason)


def _with_ledger(
    ledger: RequestLedger, end_ns: int, index: int, receive_ns: int, finish_reason: str | None
) -> ChoiceExplanation:
    """`end_ns`: when the client had it, or now; `receive_ns`: what was before it was submitted."""
    deliver_ns = 0 if ledger.ended_ns is None else max(0, end_ns - ledger.ended_ns)  # a client that left was first
    lived_ns = sum(msgspec.structs.astuple(ledger.waiting)) + ledger.prefill_ns + ledger.decode_ns
    tokenize_ns = ledger.queued_ns - ledger.arrival_ns
    return ChoiceExplanation(
        index=index,
        state=ledger.state,
        waits_for=ledger.waits_for or None,
        finish_reason=finish_reason,
        prompt_tokens=ledger.num_prompt_tokens,
        completion_tokens=ledger.num_output_tokens,
        cached_tokens=ledger.num_cached_tokens,
        receive_s=_seconds(receive_ns),
        tokenize_s=_seconds(tokenize_ns),
        waiting_s=_waiting(ledger.waiting),
        prefill_s=_seconds(ledger.prefill_ns),
        decode_s=_seconds(ledger.decode_ns),
        deliver_s=_seconds(deliver_ns),
        total_s=_seconds(receive_ns + tokenize_ns + lived_ns + deliver_ns),
        chunks=ledger.chunks,
        preemptions=tuple(_preemption(preemption) for preemption in ledger.preemptions),
        recomputed_tokens=ledger.num_recomputed_tokens,
        draft_tokens=ledger.num_draft_tokens,
        accepted_tokens=ledger.num_accepted_tokens,
        num_chunks=ledger.num_chunks,
        num_preemptions=ledger.num_preemptions,
    )


def _without_ledger(record: RequestRecord, index: int, end_ns: int | None, now_ns: int) -> ChoiceExplanation:
    """`end_ns`: if it has ended."""
    own = record.choices[index]
    until_ns = now_ns if end_ns is None else end_ns
    later_s = _seconds(until_ns - record.submitted_ns)
    return ChoiceExplanation(
        index=index,
        state=NOT_YET_QUEUED if end_ns is None else FORGOTTEN,
        finish_reason=own.finish_reason,
        completion_tokens=own.num_tokens,
        receive_s=_seconds(record.submitted_ns - record.arrival_ns),
        tokenize_s=later_s if end_ns is None else 0.0,
        unknown_s=0.0 if end_ns is None else later_s,
        total_s=_seconds(until_ns - record.arrival_ns),
    )


def _waiting(waiting: WaitTime) -> WaitingSeconds:
    parts = msgspec.structs.asdict(waiting)
    return WaitingSeconds(**{name.removesuffix("_ns"): _seconds(value) for name, value in parts.items()})


def _preemption(preemption: PreemptionRecord) -> PreemptionObject:
    return PreemptionObject(preemption.step, preemption.cause, preemption.num_lost_tokens)


def _seconds(nanoseconds: int) -> float:
    return nanoseconds / 1e9
