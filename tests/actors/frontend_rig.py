"""A frontend actor alone, between the inboxes of its tokenizers and their messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from callboard.actors.faults import Faults
from callboard.actors.frontend import Frontend
from callboard.actors.frontend_api import Health
from callboard.actors.sender import Sender
from callboard.actors.stream import Stream
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.requests import (
    Finish,
    FrontendToTokenizer,
    Resume,
    TextDeltas,
    TokenizerToFrontend,
    TokenPrompt,
)
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.topology.schema import ServerSection


class FrontendRig:
    """A frontend with two tokenizers' inboxes; requests go to them in turn, the first to `tokenizer.0`."""

    def __init__(
        self,
        capacity: int = 8,
        num_tokenizers: int = 1,
        server: ServerSection = ServerSection(),  # noqa: B008  (frozen)
    ) -> None:
        names = [f"tokenizer.{index}" for index in range(num_tokenizers)]
        self.tokenizers: dict[str, Inbox[Any]] = {name: Inbox(FrontendToTokenizer, capacity, 1 << 20) for name in names}
        self.faults = Faults()
        self.statistics = SchedulerStatistics()
        self.frontend = Frontend(
            "frontend",
            Inbox(TokenizerToFrontend, 8, 1 << 20),
            {name: Sender(LocalOutbox(inbox), self.faults) for name, inbox in self.tokenizers.items()},
            self.faults,
            model_name="m",
            max_model_len=100,
            vocab_size=10,
            max_live_requests=1000,
            scheduler="scheduler",
            read_health=lambda: Health(True, True, ""),
            read_statistics=lambda: self.statistics,
            read_grammar_statistics=lambda: None,
            read_startup=list,
            server=server,
        )

    @property
    def tokenizer(self) -> Inbox[Any]:
        return self.tokenizers["tokenizer.0"]

    def submit(self, name: str = "r", num_choices: int = 1) -> Stream:
        return self.frontend.submit(name, TokenPrompt([1]), SamplingParams(seed=1), num_choices=num_choices)

    def deliver(
        self,
        position: int,
        ids: list[int],
        text: str,
        finish: Finish | None = None,
        name: str = "r",
        attempt: int = 1,
        choice: int = 0,
        **more: Any,
    ) -> None:
        finishes = {} if finish is None else {0: finish}
        self.frontend.handle(TextDeltas([name], [choice], [attempt], [position], [ids], [text], finishes, **more))

    def die(self, *actors: str, suspects: Sequence[int] = (), has_served: bool = True) -> None:
        for actor in actors:
            self.frontend.gone(actor)
        self.frontend.settled(actors, suspects, has_served=has_served)

    def sent(self, tokenizer: int = 0) -> list[Any]:
        return self.tokenizers[f"tokenizer.{tokenizer}"].receive_all_nowait()

    def resumed(self, tokenizer: int = 0) -> Resume:
        """The one message that went to a tokenizer, which is a Resume."""
        (message,) = self.sent(tokenizer)
        assert isinstance(message, Resume)
        return message
