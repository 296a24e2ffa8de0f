"""Builds the grammar actor from what a process was started with."""

from __future__ import annotations

from collections.abc import Mapping

from ..mailbox import Inbox
from ..mailbox.messages.control import Start
from ..mailbox.messages.grammar import GrammarToScheduler, ToGrammar
from ..shm_queue import MaskRegion, ProgressLine
from .faults import Faults
from .grammar import GrammarActor, GrammarTools
from .sender import Sender


def make_grammar(
    name: str,
    start: Start,
    inbox: Inbox[ToGrammar],
    schedulers: Mapping[str, Sender[GrammarToScheduler]],
    masks: MaskRegion,
    progress: ProgressLine,
    faults: Faults,
) -> GrammarActor:
    """Loads nothing yet."""

    section = start.topology.structured_output

    def load_tools() -> GrammarTools:
        from ..structured_output.backends import make_backend
        from ..structured_output.sandbox_messages import Setup
        from ..structured_output.vocabulary import make_vocabulary
        from ..text import load_tokenizer
        from .compile_pool import CompilePool

        tokenizer = load_tokenizer(start.checkpoint, has_chat_template=False)
        vocabulary = make_vocabulary(tokenizer, start.shape.vocab_size, start.shape.eos_token_ids)
        setup = Setup(section.backend, vocabulary, section.compile_timeout_s, section.compile_memory_bytes)
        pool = CompilePool(setup, section.num_compile_processes)
        return GrammarTools(make_backend(section.backend, vocabulary), pool)

    return GrammarActor(
        name, inbox, schedulers, load_tools, masks, progress, faults, max_schema_bytes=section.max_schema_bytes
    )
