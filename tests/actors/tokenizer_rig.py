"""A tokenizer actor alone, between the inboxes of its neighbours."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import numpy as np

from callboard.actors.faults import Faults
from callboard.actors.sender import Sender
from callboard.actors.tokenizer import TokenizerActor, TokenizerInbound
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.admission import TokenDeltas, TokenizerToScheduler
from callboard.mailbox.messages.grammar import ToGrammar
from callboard.mailbox.messages.requests import (
    AS_IT_IS,
    Delivered,
    Finish,
    Generate,
    Prompt,
    PromptOptions,
    Resume,
    TokenizerToFrontend,
    TokenPrompt,
)
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.shm_queue.progress import LINE_WORDS, ProgressLine
from callboard.tests.actors.delivery_parts import Threads, make_tokenizer


class TokenizerRig:
    """One tokenizer actor; `threads` encode when they are told to."""

    def __init__(self, max_encodings: int = 2, capacity: int = 8) -> None:
        self.to_scheduler: Inbox[Any] = Inbox(TokenizerToScheduler, capacity, 1 << 20)
        self.to_grammar: Inbox[Any] = Inbox(ToGrammar, capacity, 1 << 20)
        self.to_frontend: Inbox[Any] = Inbox(TokenizerToFrontend, capacity, 1 << 20)
        self.faults = Faults()
        self.line = ProgressLine(np.zeros(LINE_WORDS, np.uint64))
        self.actor = TokenizerActor(
            "tokenizer",
            Inbox(TokenizerInbound, 8, 1 << 20),
            make_tokenizer(),
            {"scheduler": Sender(LocalOutbox(self.to_scheduler), self.faults)},
            {"frontend": Sender(LocalOutbox(self.to_frontend), self.faults)},
            {"grammar": Sender(LocalOutbox(self.to_grammar), self.faults)},
            self.line,
            self.faults,
            max_model_len=10,
            max_encodings=max_encodings,
            eos_token_ids=(0,),
        )
        self.actor._threads.shutdown()
        self.threads = Threads()
        self.actor._threads = self.threads  # type: ignore[assignment]

    def generate(
        self, name: str = "r", prompt: Prompt | None = None, num_choices: int = 1, **sampling: Any
    ) -> Generate:
        """Hand a new request to the actor."""
        message = self.request(name, prompt, num_choices, **sampling)
        self.actor.handle(message)
        return message

    def request(
        self,
        name: str = "r",
        prompt: Prompt | None = None,
        num_choices: int = 1,
        options: PromptOptions = AS_IT_IS,
        priority: int = 0,
        **sampling: Any,
    ) -> Generate:
        params = SamplingParams(**({"seed": 1} | sampling))
        return Generate(
            name, 1, "frontend", "tokenizer", "scheduler", prompt or TokenPrompt([1, 2]), params, 7, "salt",
            sampling.get("logprobs") is not None, num_choices, options, priority,
        )  # fmt: skip

    def resume(self, generate: Generate, attempt: int, *delivered: Delivered) -> None:
        self.actor.handle(Resume(msgspec.structs.replace(generate, attempt=attempt), list(delivered)))

    async def encode(self) -> None:
        """Encode everything, and let the actor's tasks go on."""
        while not self.threads.waiting and self.faults._tasks:
            await asyncio.sleep(0)
        while self.threads.waiting:
            self.threads.run_one(0)
        while self.faults._tasks:
            await asyncio.sleep(0)

    def tokens(
        self,
        position: int,
        ids: list[int],
        finish: Finish | None = None,
        attempt: int = 1,
        choice: int = 0,
        **more: Any,
    ) -> None:
        finishes = {} if finish is None else {0: finish}
        self.actor.handle(TokenDeltas(["r"], [choice], [attempt], [position], [ids], [0], finishes, **more))

    def answer(self) -> Any:
        """The next message to the frontend."""
        self.actor.flush()
        return self.to_frontend.receive_nowait()

    def sent(self) -> list[Any]:
        return self.to_scheduler.receive_all_nowait()

    def holds_nothing(self) -> bool:
        actor = self.actor
        return not (actor._states or actor._encoding or actor._unsent.frontends() or actor._answers)
