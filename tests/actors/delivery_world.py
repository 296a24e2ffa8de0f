"""Frontend, tokenizer and scheduler as they are, on tiny mailboxes, with a worker and clients made of plain values.

Nothing runs by itself: `World.act` does one thing, chosen by a number among those that are possible. Prompts are
encoded when the world says so; the event loop turns when the world says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import tokenizers

from callboard.actors.faults import Faults
from callboard.actors.frontend import Frontend, Stream
from callboard.actors.frontend_api import Delta, Health
from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.actors.tokenizer import TokenizerActor, TokenizerInbound
from callboard.errors import Overloaded, RequestError, WouldBlock
from callboard.mailbox import Inbox, LocalOutbox
from callboard.mailbox.messages.admission import Admit, TokenizerToScheduler
from callboard.mailbox.messages.requests import Abort, Finish, TextPrompt, TokenizerToFrontend
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepResult
from callboard.scheduling import Scheduler
from callboard.scheduling.limits import SchedulerLimits
from callboard.shm_queue.progress import LINE_WORDS, ProgressLine
from callboard.tests.scheduling.fake_worker import EOS, FakeWorker, truth
from callboard.text import Tokenizer

TOKEN_BYTES = (b"", b"a", b"b", b"c", b"ab", b"bc", b"\xc3", b"\xa9", b" ")
"""By id; 0 is the end mark. Ids 6 and 7 together are one character."""


def make_tokenizer() -> Tokenizer:
    """A real byte-level tokenizer with those tokens."""
    names = ["<eos>", "a", "b", "c", "ab", "bc", "Ã", "©", "Ġ"]
    model = tokenizers.models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[("a", "b"), ("b", "c")])
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(["<eos>"])
    return Tokenizer(backend, bos_token_id=None, eos_token_ids=(EOS,), chat_template=None, where="test")


def true_answer(token_ids: list[int], reason: str, stops: tuple[str, ...]) -> tuple[list[int], str, str, str | None]:
    """(ids, text, finish reason, stop string) of an answer, from its ids without stop strings: brute force."""
    for count in range(1, len(token_ids) + 1):
        text = b"".join(TOKEN_BYTES[i] for i in token_ids[:count]).decode("utf-8", "replace")
        ends = {(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text}
        if ends:
            end, _, stop = min(ends)
            return token_ids[:count], text[: end - len(stop)], "stop", stop
    text = b"".join(TOKEN_BYTES[i] for i in token_ids).decode("utf-8", "replace")
    return token_ids, text, reason, None


class Threads:
    """An executor whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Any, Any]] = deque()

    def submit(self, function: Any, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, function, args))
        return future

    def run_one(self, index: int) -> None:
        future, function, args = self.waiting[index]
        del self.waiting[index]
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args))
            except Exception as error:
                future.set_exception(error)

    def shutdown(self, **_: object) -> None:
        self.waiting.clear()


class CallBoard:
    """The writing end, and what the worker has not read yet."""

    def __init__(self, depth: int) -> None:
        self.plans: deque[bytes] = deque()
        self.num_slots = depth + 2

    def publish_nowait(self, record: bytes) -> None:
        assert len(self.plans) < self.num_slots, "the scheduler runs ahead of the pipeline's depth"
        self.plans.append(record)

    def detach(self) -> None:
        self.plans.clear()


class ResultBoard:
    """The reading end, with a doorbell that the event loop watches."""

    def __init__(self) -> None:
        self.results: deque[bytes] = deque()
        self.bell = os.eventfd(0, os.EFD_NONBLOCK)
        self.is_detached = False

    def fileno(self) -> int:
        return self.bell

    def publish(self, result: StepResult) -> None:
        self.results.append(msgspec.msgpack.encode(result))
        os.eventfd_write(self.bell, 1)

    def receive_nowait(self) -> bytes:
        assert not self.is_detached
        if not self.results:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.bell)
            raise WouldBlock
        return self.results.popleft()

    def detach(self) -> None:
        assert not self.is_detached
        self.is_detached = True
        os.close(self.bell)


class Reader:
    """What the client of one request has seen."""

    def __init__(self, stream: Stream, sampling: SamplingParams, prompt: str) -> None:
        self.stream, self.sampling, self.prompt = stream, sampling, prompt
        self.token_ids: list[int] = []
        self.text = ""
        self.ends: list[Finish | RequestError] = []
        self.is_closed = False
        self.is_abort_due = False
        """It was ended before its end: the scheduler must hear of it."""
        self.is_aborted = False
        """By the frontend itself: its terminal event still comes."""

    def take(self) -> None:
        """Read once, if there is something to read."""
        if self.is_closed or not self.stream._arrived.is_set():
            return
        step = self.stream.__anext__()
        try:
            step.send(None)
        except StopIteration as stop:
            self.see(stop.value)
        except RequestError as error:
            self.ends.append(error)
        except StopAsyncIteration:
            assert self.ends
        else:
            raise AssertionError("a stream with something to read waits")

    def see(self, delta: Delta) -> None:
        assert not self.ends, "something after the terminal event"
        assert delta.position == len(self.token_ids)
        wanted = self.sampling.logprobs is not None
        assert (delta.logprobs is not None) == (wanted and bool(delta.token_ids))
        for token_id, entry in zip(delta.token_ids, delta.logprobs or (), strict=wanted):
            assert (entry.data, entry.logprob) == (TOKEN_BYTES[token_id] or b"<eos>", -token_id / 4)
        self.token_ids += delta.token_ids
        self.text += delta.text
        if delta.finish is not None:
            self.ends.append(delta.finish)


class World:
    """One engine. `limits` bound its scheduler, `capacity` its mailboxes (messages)."""

    def __init__(self, limits: SchedulerLimits, capacity: int) -> None:
        self.limits = limits
        self.faults = [Faults(), Faults(), Faults()]
        to_frontend: Inbox[Any] = Inbox(TokenizerToFrontend, capacity, 1 << 20)
        to_tokenizer: Inbox[Any] = Inbox(TokenizerInbound, capacity, 1 << 20)
        to_scheduler: Inbox[Any] = Inbox(TokenizerToScheduler, capacity, 1 << 20)
        self.frontend = Frontend(
            "frontend",
            to_frontend,
            {"tokenizer": Sender(LocalOutbox(to_tokenizer, "frontend"), self.faults[0])},
            self.faults[0],
            model_name="fake",
            max_model_len=limits.max_model_len,
            vocab_size=len(TOKEN_BYTES),
            max_live_requests=1000,
            scheduler="scheduler",
            read_health=lambda: Health(True, True, ""),
            read_statistics=lambda: self.scheduler.statistics(),
            read_startup=list,
        )
        self.tokenizer = TokenizerActor(
            "tokenizer",
            to_tokenizer,
            make_tokenizer(),
            {"scheduler": Sender(LocalOutbox(to_scheduler, "tokenizer"), self.faults[1])},
            {"frontend": Sender(LocalOutbox(to_frontend, "tokenizer"), self.faults[1])},
            ProgressLine(np.zeros(LINE_WORDS, np.uint64)),
            self.faults[1],
            max_model_len=limits.max_model_len,
            max_encodings=4,
            eos_token_ids=(EOS,),
        )
        self.tokenizer._threads.shutdown()
        self.threads = Threads()
        self.tokenizer._threads = self.threads  # type: ignore[assignment]
        self.scheduler = Scheduler(limits)
        self.scheduler_actor = SchedulerActor(
            "scheduler",
            to_scheduler,
            {"tokenizer": Sender(LocalOutbox(to_tokenizer, "scheduler"), self.faults[2])},
            self.scheduler,
            ProgressLine(np.zeros(LINE_WORDS, np.uint64)),
            self.faults[2],
        )
        self.epoch = 0
        self.worker: FakeWorker | None = None
        self.admits: dict[tuple[str, int], Admit] = {}
        self.aborted: set[str] = set()
        """Requests whose abort the scheduler has taken."""
        self.readers: list[Reader] = []
        self.num_refused_at_the_door = 0
        self.call_board = CallBoard(limits.pipeline_depth)
        self.result_board: ResultBoard | None = None

    # What can happen

    def submit(self, prompt: str, sampling: SamplingParams) -> None:
        try:
            stream = self.frontend.submit(f"request-{len(self.readers)}", TextPrompt(prompt), sampling)
        except Overloaded:
            self.num_refused_at_the_door += 1
        else:
            self.readers.append(Reader(stream, sampling, prompt))

    def possible(self, is_ending: bool) -> list[tuple[str, int]]:
        """Things that can be done now; without deaths and aborts when the world comes to its end."""
        acts: list[tuple[str, int]] = [("turn", 0)]
        for name in ("frontend", "tokenizer", "scheduler"):
            if self.actor(name).inbox.statistics().num_waiting:
                acts += [(name, 1), (name, 2)]
        acts += [("encode", index) for index in range(len(self.threads.waiting))]
        for index, reader in enumerate(self.readers):
            if not reader.is_closed and reader.stream._arrived.is_set():
                acts.append(("read", index))
            if not is_ending and not reader.is_closed and not reader.ends:
                acts += [("close", index), ("deadline", index)]
        if self.worker is None:
            acts.append(("attach", 0))
        elif self.call_board.plans:
            acts += [("work", 0)] * 2
        if not is_ending:
            if self.worker is not None:
                acts.append(("lose", 0))
            acts += [("resend", index) for index, _ in enumerate(self.scheduler._state.requests())]
        return acts

    def actor(self, name: str) -> Any:
        return {"frontend": self.frontend, "tokenizer": self.tokenizer, "scheduler": self.scheduler_actor}[name]

    async def act(self, act: tuple[str, int]) -> None:
        match act:
            case ("turn", _):
                await asyncio.sleep(0)
            case ("frontend" | "tokenizer" | "scheduler" as name, count):
                self.take(name, count)
            case ("encode", index):
                self.threads.run_one(index)
            case ("read", index):
                self.readers[index].take()
            case ("close", index):
                reader = self.readers[index]
                reader.is_closed, reader.is_abort_due = True, not reader.stream.is_ended
                reader.stream.close()
            case ("deadline", index):
                reader = self.readers[index]
                if not reader.stream.is_ended:
                    reader.is_aborted = reader.is_abort_due = True
                    self.frontend._abort(reader.stream, "deadline")
            case ("attach", _):
                self.epoch += 1
                self.worker = FakeWorker(self.limits, self.admits, self.epoch)
                self.call_board, self.result_board = CallBoard(self.limits.pipeline_depth), ResultBoard()
                self.scheduler_actor.attach(self.epoch, self.call_board, self.result_board)  # type: ignore[arg-type]
            case ("lose", _):
                self.worker = None
                self.scheduler_actor.worker_gone()
            case ("work", _):
                assert self.worker is not None and self.result_board is not None
                self.result_board.publish(self.worker.work(self.call_board.plans.popleft(), 0))
            case ("resend", index):
                request = list(self.scheduler._state.requests())[index]
                self.scheduler._state.outbox.resend(request)
                self.scheduler_actor.flush()
            case _:
                raise AssertionError(act)
        self.check()

    def take(self, name: str, count: int) -> None:
        """An actor takes up to `count` messages, then sends what they brought about."""
        actor = self.actor(name)
        for _ in range(count):
            try:
                message = actor.inbox.receive_nowait()
            except WouldBlock:
                break
            match message:
                case Admit():
                    assert message.request_id not in self.aborted, "admitted after its abort"
                    self.admits[message.request_id, message.choice] = message
                case Abort() if name == "scheduler":
                    self.aborted.add(message.request_id)
            actor.handle(message)
        actor.flush()

    def check(self) -> None:
        for faults in self.faults:
            if faults._first is not None:
                raise faults._first

    # The end

    async def finish(self) -> None:
        """Let everything that is under way come to its end."""
        for _ in range(20_000):
            acts = self.possible(is_ending=True)
            for act in acts:
                if act in self.possible(is_ending=True):
                    await self.act(act)
            if self.possible(is_ending=True) == [("turn", 0)] and self.is_quiet():
                return
        raise AssertionError("the engine does not come to rest: " + ", ".join(str(act) for act in acts))

    def is_quiet(self) -> bool:
        has_results = self.result_board is not None and not self.result_board.is_detached and self.result_board.results
        return not has_results and not any(faults._tasks for faults in self.faults)

    def check_all_served(self) -> None:
        assert self.frontend.num_live_requests() == 0
        assert not self.tokenizer._states and not self.tokenizer._encoding and not self.tokenizer._unsent._rows
        for senders in (self.frontend._tokenizers, self.tokenizer._schedulers, self.tokenizer._frontends):
            assert not any(sender.is_blocked for sender in senders.values())
        statistics = self.scheduler.statistics()
        assert statistics.num_running == statistics.num_waiting == statistics.num_waiting_tokens == 0
        assert statistics.num_free_blocks == self.limits.num_blocks
        assert self.scheduler.check_integrity() == [] and statistics.num_leaks == 0
        for reader in self.readers:
            self.check_reader(reader)

    def check_reader(self, reader: Reader) -> None:
        assert not reader.is_abort_due or reader.stream.request_id in self.aborted, "an abort was lost"
        admit = self.admits.get((reader.stream.request_id, 0))
        if admit is None:  # aborted or refused before it was admitted
            assert (reader.token_ids, reader.text) == ([], "")
        else:
            token_ids, text, reason, stop = true_answer(*truth(admit, self.limits), reader.sampling.stop)
        if reader.is_closed:
            assert len(reader.ends) == 0
            if admit is not None:
                assert (reader.token_ids, reader.text) == (token_ids[: len(reader.token_ids)], text[: len(reader.text)])
            return
        assert len(reader.ends) == 1, f"{len(reader.ends)} terminal events"
        end = reader.ends[0]
        if isinstance(end, RequestError):
            assert end.status == 429 and not reader.token_ids
            return
        assert end.usage.completion_tokens == len(reader.token_ids)
        if end.reason == "abort":
            assert reader.is_aborted, "an abort that nobody asked for"
            if admit is not None:
                assert reader.token_ids == token_ids[: len(reader.token_ids)]
                seen = b"".join(TOKEN_BYTES[i] for i in reader.token_ids).decode("utf-8", "replace")
                assert reader.text == seen, "the text that was held back comes with the end"
            return
        assert admit is not None
        got = (reader.token_ids, reader.text, end.reason, end.stop_reason)
        assert got == (token_ids, text, reason, stop)
        assert end.usage.prompt_tokens == len(admit.prompt_token_ids)

    def close(self) -> None:
        for name in ("frontend", "tokenizer", "scheduler"):
            self.actor(name).close()
