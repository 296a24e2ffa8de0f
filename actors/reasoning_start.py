"""Where a prompt leaves the model's reasoning: a chat template may have begun it, or closed it, at the prompt's end."""

from __future__ import annotations

from ..mailbox.messages.grammar import ReasoningGate
from ..mailbox.messages.requests import ChatMessage, ReasoningMarks, ReasoningState
from ..text.reasoning import STYLES, reasoning_state


def state_of(marks: ReasoningMarks, text: str, continued: ChatMessage | None) -> ReasoningState:
    """`text`: of the whole prompt. `continued`: the message that the answer goes on in, whose content ends the prompt;
    white space at its end may be there or not."""
    written = "" if continued is None or continued.content is None else continued.content.rstrip()
    return reasoning_state(STYLES[marks.style], text.rstrip() if written else text, continued=written)


def reasoning_gate(marks: ReasoningMarks, state: ReasoningState) -> ReasoningGate | None:
    """None: a grammar holds from the first token."""
    if state == "closed" or not marks.end:
        return None
    return ReasoningGate(marks.begin, marks.end, is_open=state == "open" or not marks.begin)
