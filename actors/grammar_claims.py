"""Which grammars a tokenizer's live requests need: the grammar actor keeps them for so long."""

from __future__ import annotations

from collections.abc import Mapping

from ..mailbox.messages.grammar import Compile, Constraint, Release
from .sender import Sender


class GrammarClaims:
    """One claim for each request, whatever the number of its choices."""

    def __init__(self, tokenizer: str, grammars: Mapping[str, Sender[Compile | Release]]) -> None:
        """`grammars`: the grammar actor, if there is one."""
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._claims: dict[str, Compile] = {}

    @property
    def has_grammars(self) -> bool:
        """Somebody compiles."""
        return bool(self._grammars)

    def claim(self, request_id: str, constraint: Constraint) -> str:
        """The request, which has no claim, needs a grammar of this kind from now on; returns its key."""
        assert request_id not in self._claims, f"{request_id} claims a second grammar"
        message = self._claims[request_id] = Compile(constraint.key(), constraint, self._tokenizer, request_id)
        self._post(message)
        return message.grammar_key

    def release(self, request_id: str) -> None:
        """It has ended; it may never have had a claim."""
        claim = self._claims.pop(request_id, None)
        if claim is not None:
            self._post(Release(claim.grammar_key, self._tokenizer))

    def claim_again(self) -> None:
        """The grammar actor's next life knows nothing of them."""
        for message in self._claims.values():
            self._post(message)

    def is_of(self, actor: str) -> bool:
        """Whether it is the grammar actor."""
        return actor in self._grammars

    def close(self) -> None:
        for sender in self._grammars.values():
            sender.close()

    def _post(self, message: Compile | Release) -> None:
        for sender in self._grammars.values():
            sender.post(message)
