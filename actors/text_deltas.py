"""Text on its way to the frontends: at most one unsent row a choice, later tokens merge into it."""

from __future__ import annotations

from collections.abc import Sequence

from ..mailbox.messages.requests import Finish, PromptDetails, ReasoningState, TextDeltas, TokenText
from .text_state import TextState

MAX_ENTRIES = 1 << 19
"""Ids and log-probabilities in one message, the last row excepted: an entry has some 25 bytes, 200 at most, and a
mailbox takes messages of 64 MiB."""


class _Row:
    """The unsent part of one choice; its lists are its own and grow in place, so that merging is O(new)."""

    __slots__ = (
        "finish",
        "logprobs",
        "num_entries",
        "pause",
        "position",
        "prompt",
        "reasoning",
        "state",
        "texts",
        "token_ids",
    )

    def __init__(self, state: TextState, position: int) -> None:
        self.state = state
        self.position = position
        self.token_ids: list[int] = []
        self.texts: list[str] = []
        self.finish: Finish | None = None
        self.logprobs: list[TokenText] | None = None
        self.prompt: PromptDetails | None = None
        self.pause: Finish | None = None
        self.reasoning: ReasoningState | None = None
        self.num_entries = 1


class TextDeltaBuffer:
    """Rows by frontend, in order of arrival; bounded by the number of live choices."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[tuple[str, int], _Row]] = {}

    def add(
        self,
        state: TextState,
        position: int,
        token_ids: list[int],
        text: str,
        finish: Finish | None,
        logprobs: list[TokenText] | None,
        prompt: PromptDetails | None,
        pause: Finish | None = None,
    ) -> None:
        """Add what the state produced; `position` is the output index of the first id. Behind a `pause` nothing comes
        until the frontend, which has read it, has sent input."""
        generate = state.generate
        rows = self._rows.setdefault(generate.frontend, {})
        key = (generate.request_id, state.choice)
        row = rows.get(key)
        if row is None or row.state is not state:
            row = rows[key] = _Row(state, position)
        row.token_ids += token_ids
        row.texts.append(text)
        row.finish = finish
        row.pause = row.pause or pause
        if state.reasoning is not None:
            row.reasoning, state.reasoning = state.reasoning, None
        row.num_entries += len(token_ids) + _num_entries(logprobs)
        if logprobs is not None:
            if row.logprobs is None:
                row.logprobs = []
            row.logprobs += logprobs
        if prompt is not None:
            row.prompt = prompt
            row.num_entries += len(prompt.token_ids) + _num_entries(prompt.logprobs)

    def frontends(self) -> Sequence[str]:
        """Frontends that have unsent rows."""
        return list(self._rows)

    def has(self, frontend: str) -> bool:
        """Whether it has unsent rows."""
        return frontend in self._rows

    def drop(self, frontend: str) -> None:
        """Forget the unsent rows of a frontend that died."""
        self._rows.pop(frontend, None)

    def take(self, frontend: str) -> TextDeltas:
        """The oldest unsent rows of a frontend as one message, as a rule all; they count as sent from now on."""
        waiting = self._rows[frontend]
        rows: list[_Row] = []
        num_entries = 0
        for key in list(waiting):
            if rows and num_entries + waiting[key].num_entries > MAX_ENTRIES:
                break
            rows.append(waiting.pop(key))
            num_entries += rows[-1].num_entries
        if not waiting:
            del self._rows[frontend]
        return TextDeltas(
            request_ids=[row.state.generate.request_id for row in rows],
            choices=[row.state.choice for row in rows],
            attempts=[row.state.attempt for row in rows],
            positions=[row.position for row in rows],
            token_ids=[row.token_ids for row in rows],
            texts=["".join(row.texts) for row in rows],
            finishes={i: row.finish for i, row in enumerate(rows) if row.finish is not None},
            logprobs={i: row.logprobs for i, row in enumerate(rows) if row.logprobs is not None},
            prompts={i: row.prompt for i, row in enumerate(rows) if row.prompt is not None},
            pauses={i: row.pause for i, row in enumerate(rows) if row.pause is not None},
            reasoning_states={i: row.reasoning for i, row in enumerate(rows) if row.reasoning is not None},
        )


def _num_entries(logprobs: list[TokenText] | None) -> int:
    return 0 if logprobs is None else sum(1 + len(entry.top) for entry in logprobs)
