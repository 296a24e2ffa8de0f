"""The live choices of a tokenizer actor, by request."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .text_state import TextState


class TextStates:
    """All states of a request are of one attempt: a resumed request replaces them together."""

    def __init__(self, on_gone: Callable[[str], None]) -> None:
        """`on_gone` is called with the id of a request when its last choice has left."""
        self._on_gone = on_gone
        self._by_request: dict[str, dict[int, TextState]] = {}

    def __len__(self) -> int:
        """Requests with a live choice."""
        return len(self._by_request)

    def get(self, key: tuple[str, int]) -> TextState | None:
        """The state of (request_id, choice)."""
        choices = self._by_request.get(key[0])
        return None if choices is None else choices.get(key[1])

    def add(self, state: TextState) -> None:
        self._by_request.setdefault(state.generate.request_id, {})[state.choice] = state

    def remove(self, state: TextState) -> None:
        request_id = state.generate.request_id
        choices = self._by_request[request_id]
        del choices[state.choice]
        if not choices:
            del self._by_request[request_id]
            self._on_gone(request_id)

    def take(self, request_id: str, attempt: int) -> Sequence[TextState]:
        """Take out all choices of a request, if they are of an attempt up to `attempt`."""
        states = list(self._by_request.get(request_id, {}).values())
        if not states or states[0].attempt > attempt:
            return []
        del self._by_request[request_id]
        self._on_gone(request_id)
        return states

    def of_frontend(self, frontend: str) -> Sequence[TextState]:
        """One state of each of its requests."""
        firsts = (next(iter(choices.values())) for choices in self._by_request.values())
        return [state for state in firsts if state.generate.frontend == frontend]
