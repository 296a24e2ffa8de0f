"""What can happen to a scheduler. Everything it knows of the world comes in as one of these."""

from __future__ import annotations

import msgspec

from ..mailbox.messages.admission import AddInput, Admit, Stop
from ..mailbox.messages.drafts import Drafts
from ..mailbox.messages.grammar import GrammarFailed, GrammarReady, MatcherFailed
from ..mailbox.messages.requests import Abort
from ..mailbox.messages.steps import StepResult
from ..mailbox.messages.transfers import BlocksLoaded


class WorkerGone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=60):
    """The worker died, and every K/V with it: the epoch is over, its plans in flight will have no result."""


class WorkerAttached(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=61):
    """A worker without rows reads the boards of `epoch`."""

    epoch: int


class TokenizerGone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=62):
    """A tokenizer died. Those of its requests that no higher attempt claims within `resume_grace_s` are ended."""

    tokenizer: str


class GrammarGone(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=63):
    """The grammar actor died: no grammar is ready, and no row gets a mask until its next life has compiled it."""


Event = (
    Admit
    | AddInput
    | Stop
    | Abort
    | GrammarReady
    | GrammarFailed
    | MatcherFailed
    | Drafts
    | BlocksLoaded
    | StepResult
    | WorkerGone
    | WorkerAttached
    | TokenizerGone
    | GrammarGone
)
