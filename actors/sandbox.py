"""A process in which constraints are compiled and tried, so that a grammar that is a bomb goes off here.

`python -m callboard.actors.sandbox`, with the messages of `structured_output/sandbox_messages.py` on its standard input
and output. It loads the backend once. Each check is made by a fork of it, which has all that in the same memory and is
there before it is asked for. The kernel holds a fork to its limits: it dies of a check that takes more processor time
(SIGPROF), and where an allocation fails for want of address space a library may end it, too. The next check begins
afresh.

What forks has one thread: the backends start none.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import traceback
from typing import BinaryIO

import msgspec

from ..errors import GrammarRefused
from ..mailbox.messages.grammar import Constraint, JsonFormat
from ..structured_output.backend import GrammarBackend
from ..structured_output.backends import make_backend
from ..structured_output.sandbox_messages import Check, Checked, Ended, Ready, Setup, ToSandbox, frame, read_frame
from ..structured_output.vocabulary import Vocabulary
from ..structured_output.walks import NUM_WALKS, walk
from .parent_death import die_with_parent

NO_MEMORY = 2
"""Exit status of a fork that ran out of it and noticed."""
_DECODER = msgspec.msgpack.Decoder(ToSandbox)


def main() -> int:
    """Have checks made until standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole group; the owner ends this process
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    questions = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # a library that prints must not write among the answers
    body = read_frame(questions)
    setup = None if body is None else _DECODER.decode(body)
    if not isinstance(setup, Setup):
        return 1
    backend = make_backend(setup.backend, setup.vocabulary)
    checked(backend, setup.vocabulary, Constraint(JsonFormat("{}")))  # what only the first check loads all have
    gc.collect()
    gc.freeze()  # whoever collects writes to all memory, which would be copied
    while True:
        pid, its_check = _fork(setup, backend, answers)
        answers.write(frame(Ready(pid)))
        body = read_frame(questions)
        with contextlib.suppress(BrokenPipeError), its_check:  # somebody has killed it
            if body is not None:
                its_check.write(body)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if body is None:
            return 0
        if status:
            answers.write(frame(Ended(status)))


def checked(backend: GrammarBackend, vocabulary: Vocabulary, constraint: Constraint) -> str | None:
    """Why no answer can be held to the constraint; None if it compiles, and random answers of it can be made."""
    try:
        grammar = backend.compile(constraint)
        for seed in range(NUM_WALKS):
            walk(grammar, vocabulary, seed)
    except GrammarRefused as refused:
        return refused.message
    return None


def _fork(setup: Setup, backend: GrammarBackend, answers: BinaryIO) -> tuple[int, BinaryIO]:
    """A process that makes the check that is written to the pipe, and ends without one where the pipe does."""
    parent_pid = os.getpid()
    theirs, ours = os.pipe()
    pid = os.fork()
    if pid:
        os.close(theirs)
        return pid, os.fdopen(ours, "wb")
    status = 1
    try:
        die_with_parent(parent_pid)
        os.close(ours)
        _limit_memory(setup.memory_bytes)
        with open(theirs, "rb") as pipe:
            body = pipe.read()
        if body:
            asked = _DECODER.decode(body)
            assert isinstance(asked, Check), "Setup comes once"
            signal.setitimer(signal.ITIMER_PROF, setup.processor_s)
            answers.write(frame(Checked(checked(backend, setup.vocabulary, asked.constraint))))
        status = 0
    except MemoryError:
        status = NO_MEMORY
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _limit_memory(more_bytes: int) -> None:
    with open("/proc/self/statm") as file:
        num_pages = int(file.read().split()[0])
    limit = num_pages * os.sysconf("SC_PAGE_SIZE") + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    sys.exit(main())
