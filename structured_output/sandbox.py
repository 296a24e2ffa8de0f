"""A process that compiles constraints and tries them, so that a grammar that is a bomb goes off here.

`python -m callboard.structured_output.sandbox`, with the messages of `sandbox_messages.py` on its standard input and
output. The kernel holds it to its limits: it dies of a check that takes more processor time (SIGPROF), and where an
allocation fails for want of address space a library may end it, too.
"""

from __future__ import annotations

import os
import resource
import signal
import sys

import msgspec

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import Constraint
from .backend import GrammarBackend
from .backends import make_backend
from .sandbox_messages import Check, Checked, Ready, Setup, ToSandbox, frame, read_frame
from .vocabulary import Vocabulary
from .walks import NUM_WALKS, walk


def main() -> int:
    """Answer until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group; the owner ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library that prints must not write among the answers
    decoder = msgspec.msgpack.Decoder(ToSandbox)
    body = read_frame(sys.stdin.buffer)
    setup = None if body is None else decoder.decode(body)
    if not isinstance(setup, Setup):
        return 1
    backend = make_backend(setup.backend, setup.vocabulary)
    _limit_memory(setup.memory_bytes)
    answers.write(frame(Ready()))
    while (body := read_frame(sys.stdin.buffer)) is not None:
        asked = decoder.decode(body)
        assert isinstance(asked, Check), "Setup comes once"
        signal.setitimer(signal.ITIMER_PROF, setup.processor_s)
        try:
            refusal = checked(backend, setup.vocabulary, asked.constraint)
        except MemoryError:
            return 2  # what is left of the memory is in pieces: a new process begins afresh
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(frame(Checked(refusal)))
    return 0


def checked(backend: GrammarBackend, vocabulary: Vocabulary, constraint: Constraint) -> str | None:
    """Why no answer can be held to the constraint; None if it compiles, and random answers of it can be made."""
    try:
        grammar = backend.compile(constraint)
        for seed in range(NUM_WALKS):
            walk(grammar, vocabulary, seed)
    except GrammarRefused as refused:
        return refused.message
    return None


def _limit_memory(more_bytes: int) -> None:
    with open("/proc/self/statm") as file:
        num_pages = int(file.read().split()[0])
    limit = num_pages * os.sysconf("SC_PAGE_SIZE") + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main())
