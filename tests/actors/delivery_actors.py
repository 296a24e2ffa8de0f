"""The actors of a `World`: what ships, with hands on what they would take from outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from callboard.actors.faults import Faults
from callboard.actors.frontend import Frontend
from callboard.actors.frontend_api import Health
from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.actors.tokenizer import TokenizerActor, TokenizerInbound
from callboard.mailbox import Inbox
from callboard.mailbox.messages.admission import TokenizerToScheduler
from callboard.mailbox.messages.requests import TokenizerToFrontend
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.shm_queue.progress import LINE_WORDS, ProgressLine
from callboard.tests.actors.delivery_parts import TOKEN_BYTES, Threads, Turn, make_tokenizer
from callboard.tests.scheduling.fake_model import EOS

SCHEDULER = "scheduler"
_MAX_BYTES = 1 << 20


def make_frontend(
    name: str,
    capacity: int,
    senders: dict[str, Sender[Any]],
    faults: Faults,
    limits: SchedulerLimits,
    read_statistics: Callable[[], SchedulerStatistics],
) -> Frontend:
    """`capacity`: messages that its inbox holds."""
    frontend = Frontend(
        name,
        Inbox(TokenizerToFrontend, capacity, _MAX_BYTES),
        senders,
        faults,
        model_name="fake",
        max_model_len=limits.max_model_len,
        vocab_size=len(TOKEN_BYTES),
        max_live_requests=1000,
        scheduler=SCHEDULER,
        read_health=lambda: Health(True, True, ""),
        read_statistics=read_statistics,
        read_grammar_statistics=lambda: None,
        read_startup=list,
    )
    frontend._turn = Turn(list(senders))  # type: ignore[assignment]
    return frontend


def make_tokenizer_actor(
    name: str, capacity: int, senders: dict[str, Sender[Any]], faults: Faults, limits: SchedulerLimits
) -> TokenizerActor:
    """Its prompts are encoded when the test says so."""
    actor = TokenizerActor(
        name,
        Inbox(TokenizerInbound, capacity, _MAX_BYTES),
        make_tokenizer(),
        {SCHEDULER: senders.pop(SCHEDULER)},
        senders,
        {},
        ProgressLine(np.zeros(LINE_WORDS, np.uint64)),
        faults,
        max_model_len=limits.max_model_len,
        max_encodings=4,
        eos_token_ids=(EOS,),
    )
    actor._threads.shutdown()
    actor._threads = Threads()  # type: ignore[assignment]
    return actor


def make_scheduler_actor(
    name: str, capacity: int, senders: dict[str, Sender[Any]], faults: Faults, limits: SchedulerLimits
) -> SchedulerActor:
    """It has no boards yet."""
    inbox = Inbox[Any](TokenizerToScheduler, capacity, _MAX_BYTES)
    progress = ProgressLine(np.zeros(LINE_WORDS, np.uint64))
    return SchedulerActor(name, inbox, senders, Scheduler(limits), progress, faults)
