"""Whole answers: out of the deltas of a stream, or out of one JSON object."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import MalformedAnswer
from .deltas import Answer, CallMade, Choice, ClientDelta
from .wire import WireAnswer, WireChoice


def assemble(deltas: Iterable[ClientDelta], model: str, ignored_fields: tuple[str, ...]) -> Answer:
    """The answer that the deltas of a whole stream make up."""
    by_choice: dict[int, list[ClientDelta]] = {}
    usage, request_id = None, ""
    for delta in deltas:
        by_choice.setdefault(delta.choice, []).append(delta)
        usage, request_id = delta.usage or usage, delta.request_id
    choices = [_choice(index, of_choice) for index, of_choice in sorted(by_choice.items())]
    return Answer(choices, usage, request_id, model, ignored_fields)


def _choice(index: int, deltas: list[ClientDelta]) -> Choice:
    last = deltas[-1]
    has_logprobs = any(delta.logprobs is not None for delta in deltas)
    return Choice(
        text="".join(delta.text for delta in deltas),
        finish_reason=last.finish_reason or "",
        index=index,
        stop_reason=last.stop_reason,
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        logprobs=[entry for delta in deltas for entry in delta.logprobs or ()] if has_logprobs else None,
        prompt_token_ids=next((delta.prompt_token_ids for delta in deltas if delta.prompt_token_ids), None),
        prompt_logprobs=next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs), None),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=_calls(deltas),
    )


def _calls(deltas: Iterable[ClientDelta]) -> list[CallMade]:
    """In the order of their indexes."""
    made: dict[int, CallMade] = {}
    for piece in (piece for delta in deltas for piece in delta.tool_calls):
        call = made.get(piece.index, CallMade("", "", ""))
        made[piece.index] = CallMade(piece.id or call.id, piece.name or call.name, call.arguments + piece.arguments)
    return [made[index] for index in sorted(made)]


def answer_of(wire: WireAnswer, num_choices: int, ignored_fields: tuple[str, ...]) -> Answer:
    """Raises MalformedAnswer unless all choices are there, each with a finish reason."""
    choices = sorted((_whole_choice(wire, choice) for choice in wire.choices), key=lambda choice: choice.index)
    if [choice.index for choice in choices] != list(range(num_choices)):
        raise MalformedAnswer(f"the answer has {len(choices)} choices, {num_choices} were asked for")
    return Answer(choices, wire.usage, wire.id, wire.model, ignored_fields)


def _whole_choice(wire: WireAnswer, choice: WireChoice) -> Choice:
    if choice.finish_reason is None:
        raise MalformedAnswer(f"choice {choice.index} of the answer has no finish reason")
    try:
        logprobs = choice.entries()
    except ValueError as error:
        raise MalformedAnswer(f"log-probabilities that cannot be read: {error}") from error
    return Choice(
        text=choice.whole_text(),
        finish_reason=choice.finish_reason,
        index=choice.index,
        stop_reason=choice.stop_reason,
        token_ids=choice.token_ids or [],
        logprobs=logprobs,
        prompt_token_ids=choice.prompt_token_ids or wire.prompt_token_ids,
        prompt_logprobs=choice.prompt_logprobs or wire.prompt_logprobs,
        reasoning=choice.reasoning,
        tool_calls=[CallMade(call.id, call.function.name, call.function.arguments) for call in choice.calls],
    )
