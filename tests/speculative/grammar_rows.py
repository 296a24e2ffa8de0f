"""An engine whose constrained rows follow a JSON schema: the grammar actor itself beside scheduler and runner."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from callboard.actors.faults import Faults
from callboard.actors.grammar import GrammarActor, GrammarTools
from callboard.actors.sender import Sender
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.grammar import (
    Advance,
    Compile,
    Constraint,
    GrammarReady,
    GrammarToScheduler,
    JsonFormat,
    ToGrammar,
)
from callboard.scheduling.events import Event
from callboard.shm_queue import MaskLayout, MaskRegion, create_mask_region
from callboard.shm_queue.progress import LINE_WORDS, ProgressLine
from callboard.structured_output.llguidance_backend import LLGuidanceBackend
from callboard.structured_output.vocabulary import Vocabulary
from callboard.tests.models.families import VOCAB_SIZE, Engine

EOS = 2
_LONG = ['{"', '":', '", "', '"]}', "tags", "name", "ab", "abc", '["', '": "', "12", "34", ', "n', "ba", "aa", "  "]
TOKENS = [b"<pad>", b"<bos>", b"<eos>", *(bytes([value]) for value in range(32, 127)), *(t.encode() for t in _LONG)]
VOCABULARY = Vocabulary(TOKENS + [b""] * (VOCAB_SIZE - len(TOKENS)), [0, 1, EOS], [EOS])
SCHEMA = """{"type": "object", "required": ["name", "tags", "n"], "additionalProperties": false, "properties": {
    "name": {"type": "string", "maxLength": 6}, "n": {"type": "integer", "maximum": 99999},
    "tags": {"type": "array", "items": {"enum": ["ab", "abc", "b"]}, "minItems": 2, "maxItems": 4}}}"""
CONSTRAINT = Constraint(JsonFormat(SCHEMA))
KEY = CONSTRAINT.key()


class _NoSandbox:
    async def check(self, constraint: Constraint) -> None:
        """It is known to be good."""

    def start(self) -> None:
        """No process."""

    def kill(self) -> None:
        """No process."""


class Grammars:
    """The actor, with the grammar of `SCHEMA` compiled, and the region that it writes masks to."""

    def __init__(self) -> None:
        layout = MaskLayout(num_rows=16, num_positions=12, vocab_size=VOCAB_SIZE)
        fd = create_mask_region(layout)
        self.masks = MaskRegion(layout, fd)
        os.close(fd)
        asyncio.run(self._start())

    async def _start(self) -> None:
        faults, told = Faults(), Inbox[Any](GrammarToScheduler, 64, 1 << 20)
        self.actor = GrammarActor(
            "grammar",
            Inbox(ToGrammar, 64, 1 << 20),
            {"scheduler": Sender(LocalOutbox(told), faults)},
            lambda: GrammarTools(LLGuidanceBackend(VOCABULARY), _NoSandbox()),  # type: ignore[arg-type]
            self.masks,
            ProgressLine(np.zeros(LINE_WORDS, np.uint64)),
            faults,
            max_schema_bytes=1 << 16,
        )
        self.actor.handle(Compile(KEY, CONSTRAINT, "tokenizer"))
        assert await told.receive() == GrammarReady(KEY)


class ConstrainedEngine(Engine):
    """News reach the grammar actor only when `delay` more calls of the scheduler have come, so that masks are late."""

    def __init__(self, *args: Any, delay: int = 0, **settings: Any) -> None:
        self._news: deque[Advance | None] = deque([None] * delay)
        self._grammars = Grammars()
        settings.setdefault("has_constrained_drafts", True)
        super().__init__(*args, masks=self._grammars.masks, **settings)
        self._plan([GrammarReady(KEY)])

    def _plan(self, events: Sequence[Event]) -> bool:
        has_step = super()._plan(events)
        self._news.append(self.scheduler.advance_grammars())
        if (news := self._news.popleft()) is not None:
            self._grammars.actor.handle(news)
        assert self._grammars.actor._times.num_failed == 0, "a token came that the grammar does not allow"
        return has_step
