"""Messages from the grammar actor to the scheduler.

| message       | sender  | receiver  | transport | bound         | when full                        | when the peer dies |
|---------------|---------|-----------|-----------|---------------|----------------------------------|--------------------|
| GrammarReady  | grammar | scheduler | mailbox   | one a grammar | kept and sent when there is room | compiled again     |
| GrammarFailed | grammar | scheduler | mailbox   | one a grammar | kept and sent when there is room | compiled again     |
"""

from __future__ import annotations

import msgspec


class GrammarReady(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=50):
    """Requests with this `grammar_key` may run."""

    grammar_key: str


class GrammarFailed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=51):
    """Requests with this `grammar_key` end with a 400 and the sentence."""

    grammar_key: str
    message: str
