"""Which grammars are ready, and who waits for those that are not."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from ..mailbox.messages.grammar import GrammarFailed
from .request import Request, RequestKey

MAX_VERDICTS = 4096
"""Grammars whose fate is remembered; one that was forgotten is waited for again, which its actor answers."""

V = TypeVar("V")


class Grammars:
    """The fate of each grammar: None, it is ready; a failure, it was not compiled.

    A failure of the engine is not the grammar's fate but that of the requests that it names: others get an answer of
    their own."""

    def __init__(self) -> None:
        self._fates: OrderedDict[str, GrammarFailed | None] = OrderedDict()
        self._unlucky: OrderedDict[str, GrammarFailed] = OrderedDict()
        """By request: the answer may come before the request does."""
        self._waiting: dict[str, dict[RequestKey, Request]] = {}

    def is_known(self, request: Request) -> bool:
        """Its grammar is ready, or has failed."""
        return request.grammar_key in self._fates or request.key[0] in self._unlucky

    def failure(self, request: Request) -> GrammarFailed | None:
        """Why its grammar was not compiled, if that is known."""
        return self._unlucky.get(request.key[0]) or self._fates.get(request.grammar_key)

    def decide(self, grammar_key: str, failure: GrammarFailed | None) -> list[Request]:
        """Its fate becomes known, or that of some requests. Returns who waited for it, in the order of coming."""
        if failure is not None and failure.status >= 500:
            for request_id in failure.request_ids:
                _remember(self._unlucky, request_id, failure)
            waiting = self._waiting.get(grammar_key, {}).values()
            ended = [request for request in waiting if request.key[0] in failure.request_ids]
            for request in ended:
                self.forget(request)
            return ended
        _remember(self._fates, grammar_key, failure)
        return list(self._waiting.pop(grammar_key, {}).values())

    def forget_all(self) -> None:
        """Nothing is known of any grammar; who waits goes on waiting."""
        self._fates.clear()
        self._unlucky.clear()

    def wait(self, request: Request) -> None:
        """The request waits for its grammar."""
        self._waiting.setdefault(request.grammar_key, {})[request.key] = request

    def forget(self, request: Request) -> None:
        """It waits no longer."""
        waiting = self._waiting.get(request.grammar_key, {})
        waiting.pop(request.key, None)
        if not waiting:
            self._waiting.pop(request.grammar_key, None)


def _remember(verdicts: OrderedDict[str, V], key: str, verdict: V) -> None:
    verdicts[key] = verdict
    verdicts.move_to_end(key)
    if len(verdicts) > MAX_VERDICTS:
        verdicts.popitem(last=False)
