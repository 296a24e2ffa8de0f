"""Streaming sessions at a tokenizer: where the present turn begins, and where it stands.

Each turn is like a request whose prompt is all that stands before its output: the first prompt, earlier turns, inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..errors import InvalidRequest
from ..mailbox.messages.requests import Delivered, Resume, TextPrompt, TokenPrompt


class SessionTurn:
    """Mutable; of one attempt of one session."""

    __slots__ = ("awaits_mark", "is_last", "is_paused")

    def __init__(self, *, is_last: bool = False, is_paused: bool = False) -> None:
        self.is_last = is_last
        """Its end is that of the session."""
        self.is_paused = is_paused
        """It has ended, and the next input has not gone in."""
        self.awaits_mark = False
        """It ended at a stop string, and the scheduler, which went on until it heard of that, has not said so: its
        tokens until then are surplus."""

    def pause(self, *, is_marked: bool) -> None:
        """The turn has ended; `is_marked`: the scheduler has said so."""
        self.is_paused, self.awaits_mark = True, not is_marked

    def go_on(self, *, is_last: bool) -> None:
        """Input went in."""
        self.is_paused, self.is_last = False, is_last


class PresentTurn(msgspec.Struct, frozen=True, gc=False):
    """From where a request goes on; of any other than a session it has one turn, which is its last."""

    first_output_index: int
    delivered: list[Delivered]
    """Of each live choice, what its frontend has of this turn."""
    is_last: bool = True
    is_paused: bool = False

    @property
    def session(self) -> SessionTurn:
        """Its state."""
        return SessionTurn(is_last=self.is_last, is_paused=self.is_paused)


def present_turn(resume: Resume) -> PresentTurn:
    """The turn that `resume` stands in."""
    if not resume.generate.is_session:
        return PresentTurn(0, resume.delivered)
    pauses, inputs = resume.pauses, resume.inputs
    first = pauses[len(inputs) - 1] if inputs else 0
    (whole,) = resume.delivered
    return PresentTurn(
        first,
        [Delivered(whole.choice, whole.token_ids[first:], whole.num_chars)],
        is_last=bool(inputs) and inputs[-1].is_last,
        is_paused=len(pauses) > len(inputs),
    )


def context_of(
    resume: Resume,
    prompt_token_ids: list[int],
    encode: Callable[[TextPrompt | TokenPrompt], list[int]],
    max_model_len: int,
) -> list[int]:
    """What stands before the output of the present turn: prompt, then output and input of each earlier turn.

    Raises as `encode` and `check_input`.
    """
    (whole,) = resume.delivered
    ids, begin = list(prompt_token_ids), 0
    for end, given in zip(resume.pauses, resume.inputs, strict=False):  # one more pause: it is paused now
        ids += whole.token_ids[begin:end]
        input_ids = encode(given.prompt)
        check_input(len(ids), input_ids, max_model_len)
        ids += input_ids
        begin = end
    return ids


def check_input(num_context_tokens: int, input_ids: Sequence[int], max_model_len: int) -> None:
    """Input that leaves no place for output. Raises InvalidRequest."""
    if not input_ids:
        raise InvalidRequest("the input has no tokens; give at least one", param="prompt")
    num_tokens = num_context_tokens + len(input_ids)
    if num_tokens >= max_model_len:
        raise InvalidRequest(
            f"the session has {num_context_tokens:,} tokens and its input {len(input_ids):,}, together {num_tokens:,}; "
            f"the limit is {max_model_len - 1:,} (max_model_len {max_model_len:,}, less one to generate)",
            code="context_length_exceeded",
            param="prompt",
        )
