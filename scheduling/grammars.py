"""Which grammars are ready, and who waits for those that are not."""

from __future__ import annotations

from collections import OrderedDict

from ..mailbox.messages.grammar import GrammarFailed
from .request import Request, RequestKey

MAX_VERDICTS = 4096
"""Grammars whose fate is remembered; one that was forgotten is waited for again, which its actor answers."""


class Grammars:
    """The fate of each grammar: None, it is ready; a failure, it was not compiled."""

    def __init__(self) -> None:
        self._fates: OrderedDict[str, GrammarFailed | None] = OrderedDict()
        self._waiting: dict[str, dict[RequestKey, Request]] = {}

    def is_known(self, grammar_key: str) -> bool:
        """It is ready, or has failed."""
        return grammar_key in self._fates

    def failure(self, grammar_key: str) -> GrammarFailed | None:
        """Why it was not compiled, if that is known."""
        return self._fates.get(grammar_key)

    def decide(self, grammar_key: str, failure: GrammarFailed | None) -> list[Request]:
        """Its fate becomes known. Returns who waited for it, in the order of coming."""
        self._fates[grammar_key] = failure
        self._fates.move_to_end(grammar_key)
        if len(self._fates) > MAX_VERDICTS:
            self._fates.popitem(last=False)
        return list(self._waiting.pop(grammar_key, {}).values())

    def forget_all(self) -> None:
        """Nothing is known of any grammar; who waits goes on waiting."""
        self._fates.clear()

    def wait(self, request: Request) -> None:
        """The request waits for its grammar."""
        self._waiting.setdefault(request.grammar_key, {})[request.key] = request

    def forget(self, request: Request) -> None:
        """It waits no longer."""
        waiting = self._waiting.get(request.grammar_key, {})
        waiting.pop(request.key, None)
        if not waiting:
            self._waiting.pop(request.grammar_key, None)
