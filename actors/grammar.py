"""The grammar actor: compiles what answers have to look like, follows each answer, and writes the masks of its tokens.

    Compile ─▶ sandbox (time, memory) ─▶ compiled here ─▶ GrammarReady / GrammarFailed to the scheduler
    Advance ─▶ the matchers take the tokens ─▶ the masks of the next ones, into the region that the workers read

The first `Compile` loads backend and vocabulary: an engine that is never asked for a format does not pay for them.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Mapping
from typing import NamedTuple, assert_never

import numpy as np

from ..errors import ConfigError, EngineFailure, GrammarRefused
from ..mailbox import Inbox
from ..mailbox.messages.grammar import (
    Advance,
    Compile,
    GrammarFailed,
    GrammarReady,
    GrammarToScheduler,
    MatcherFailed,
    Release,
    ToGrammar,
)
from ..shm_queue import MaskRegion, Phase, ProgressLine
from ..structured_output.backend import CompiledGrammar, GrammarBackend
from ..structured_output.sizes import compiled_bytes, ensure_size
from .compile_pool import CompilePool
from .faults import Faults
from .grammar_book import Fate, GrammarBook
from .grammar_statistics import GrammarTimes
from .log import log_event
from .sender import Sender

_MAX_UNUSED = 256
"""Grammars that are kept though no request has them."""
_MAX_UNUSED_BYTES = 256 << 20
"""And what they may take of memory, as it is estimated."""


class GrammarTools(NamedTuple):
    """What compiles."""

    backend: GrammarBackend
    pool: CompilePool


class _RowNews(NamedTuple):
    """What an `Advance` says of one row; `grammar_key`: of a run that is new; `drafts`: what may come behind."""

    epoch: int
    row: int
    run: int
    position: int
    token_ids: list[int]
    grammar_key: str | None
    drafts: list[int]


class _Answer:
    """One that is followed."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.grammar, self.matcher = grammar, grammar.matcher()
        self.token_ids = array("i")
        """Its output so far, from which another matcher can be made."""
        self.takes_drafts = True
        """No draft was too much work yet."""


class GrammarActor:
    """Grammars by key, matchers by run. A run whose tokens its matcher does not take ends."""

    def __init__(
        self,
        name: str,
        inbox: Inbox[ToGrammar],
        schedulers: Mapping[str, Sender[GrammarToScheduler]],
        load_tools: Callable[[], GrammarTools],
        masks: MaskRegion,
        progress: ProgressLine,
        faults: Faults,
        *,
        max_schema_bytes: int,
    ) -> None:
        """`load_tools` may take a second; it is called once, in a thread. `schedulers`: the one."""
        self.name = name
        self.inbox = inbox
        self.faults = faults
        self._schedulers = schedulers
        self._load_tools = load_tools
        self._tools: asyncio.Task[GrammarTools] | None = None
        self._pool: CompilePool | None = None
        self._max_schema_bytes = max_schema_bytes
        self._masks = masks
        self._progress = progress
        self._book = GrammarBook(_MAX_UNUSED, _MAX_UNUSED_BYTES)
        self._compiling: dict[str, list[str]] = {}
        """Key -> requests that wait for it."""
        self._answers: dict[int, _Answer] = {}
        self._early: dict[int, _RowNews] = {}
        """Runs whose grammar is not there yet. The scheduler remembers more grammars than are kept here, so it lets a
        request run whose grammar is compiled anew. Without a mask such a run gets no tokens: there is no more news."""
        self._mask = np.zeros(masks.layout.num_words, np.int32)
        self._times = GrammarTimes()
        progress.set_statistics(self._times.statistics())
        progress.mark(phase=Phase.SERVING)

    def handle(self, message: ToGrammar) -> None:
        match message:
            case Advance():
                self._advance(message)
            case Compile():
                self._compile(message)
            case Release():
                self._book.release(message.grammar_key, message.tokenizer)
            case _:
                assert_never(message)

    def flush(self) -> None:
        self._progress.set_statistics(self._times.statistics())

    def gone(self, actor: str) -> None:
        """A dead scheduler's runs are over; a dead tokenizer's requests come again."""
        if actor in self._schedulers:
            self._answers.clear()
            self._early.clear()
        else:
            self._book.lose_tokenizer(actor)

    def close(self) -> None:
        self.faults.cancel()
        if self._tools is not None:
            self._tools.cancel()
        if self._pool is not None:
            self._pool.kill()
        for scheduler in self._schedulers.values():
            scheduler.close()
        self.inbox.close()

    # Grammars

    def _compile(self, message: Compile) -> None:
        key = message.grammar_key
        self._book.use(key, message.tokenizer)
        fate = self._book.find(key)
        if fate is not None:
            self._tell(key, fate)
        elif key not in self._compiling:
            self._compiling[key] = [message.request_id]
            self.faults.start(self._settle(message))
        else:
            self._compiling[key].append(message.request_id)

    async def _settle(self, message: Compile) -> None:
        """Find out what becomes of a grammar: in the sandbox first, so that none that explodes gets here."""
        fate: Fate
        started_ns = time.monotonic_ns()
        try:
            ensure_size(message.constraint.format, self._max_schema_bytes)
            tools = await self._loaded()
            await tools.pool.check(message.constraint)
            fate = await asyncio.to_thread(tools.backend.compile, message.constraint)
            self._times.num_compiled += 1
        except GrammarRefused as error:
            fate = error.message
            self._times.num_refused += 1
        except (ConfigError, EngineFailure) as error:  # no fault of this grammar: the next one is tried
            request_ids = self._compiling.pop(message.grammar_key)
            self._post(GrammarFailed(message.grammar_key, str(error), 500, request_ids))
            for news in self._take_early(message.grammar_key):
                self._fail(news.epoch, news.run, str(error), 500)
            return
        key = message.grammar_key
        log_event(
            "grammar.compiled",
            key=key,
            seconds=(time.monotonic_ns() - started_ns) / 1e9,
            is_good=not isinstance(fate, str),
        )
        del self._compiling[key]
        size = len(fate) if isinstance(fate, str) else compiled_bytes(message.constraint.format)
        self._book.settle(key, fate, size)
        self._tell(key, fate)
        for news in self._take_early(key):
            self._take_news(news)
        self.flush()

    async def _loaded(self) -> GrammarTools:
        if self._tools is None or (self._tools.done() and self._tools.exception() is not None):
            self._tools = asyncio.ensure_future(self._load())
        return await asyncio.shield(self._tools)

    async def _load(self) -> GrammarTools:
        tools = await asyncio.to_thread(self._load_tools)
        self._pool = tools.pool
        self._pool.start()
        return tools

    def _tell(self, key: str, fate: Fate) -> None:
        self._post(GrammarFailed(key, fate) if isinstance(fate, str) else GrammarReady(key))

    def _post(self, message: GrammarToScheduler) -> None:
        for scheduler in self._schedulers.values():
            scheduler.post(message)

    # Masks

    def _advance(self, message: Advance) -> None:
        for run in message.ended:
            self._answers.pop(run, None)
            self._early.pop(run, None)
        with_drafts: list[_RowNews] = []
        parts = (message.rows, message.runs, message.positions, message.token_ids)
        for row, run, position, token_ids in zip(*parts, strict=True):
            key = message.grammar_keys.get(run)
            news = _RowNews(message.epoch, row, run, position, token_ids, key, message.drafts.get(run, []))
            if key is not None and self._book.find(key) is None:
                self._early[run] = news
            else:
                self._take_news(news)
                if news.drafts:
                    with_drafts.append(news)
        for news in with_drafts:  # behind the masks of all rows, without which these have no token at all
            self._take_drafts(news)

    def _take_early(self, key: str) -> list[_RowNews]:
        """Those that waited for this grammar."""
        taken = [news for news in self._early.values() if news.grammar_key == key]
        for news in taken:
            del self._early[news.run]
        return taken

    def _take_news(self, news: _RowNews) -> None:
        started_ns = time.perf_counter_ns()
        try:
            self._follow(news)
            self._answers[news.run].matcher.fill(self._mask)
            if not self._mask.any():
                raise GrammarRefused("nothing may follow what stands there")
        except GrammarRefused as error:
            self._fail(news.epoch, news.run, error.message, 400)
            return
        except EngineFailure as error:
            self._fail(news.epoch, news.run, str(error), 500)
            return
        self._write(news, 0)
        self._times.mask(time.perf_counter_ns() - started_ns)

    def _write(self, news: _RowNews, num_drafts: int) -> None:
        """The mask of the position behind so many drafts."""
        base = news.position + len(news.token_ids)
        self._masks.write(news.row, news.epoch, news.run, base, base + num_drafts, self._mask)

    def _take_drafts(self, news: _RowNews) -> None:
        """Masks behind the drafts, as far as the grammar allows them. The answer stands where it stood: drafts that are
        too much work are no fault of it, and it gets no more of these masks."""
        answer = self._answers.get(news.run)
        if answer is None or not answer.takes_drafts:
            return
        try:
            version = answer.matcher.num_accepted
            for index in range(answer.matcher.num_valid(news.drafts)):
                started_ns = time.perf_counter_ns()
                answer.matcher.accept(news.drafts[index : index + 1])
                answer.matcher.fill(self._mask)
                if not self._mask.any():
                    break
                self._write(news, index + 1)
                self._times.mask(time.perf_counter_ns() - started_ns)
            answer.matcher.rollback(version)
        except GrammarRefused:
            answer.takes_drafts = False
            answer.matcher = answer.grammar.matcher()
            answer.matcher.accept(answer.token_ids)

    def _follow(self, news: _RowNews) -> None:
        """Raises GrammarRefused if its grammar keeps the run from going on, EngineFailure if it kept to no masks."""
        if news.grammar_key is not None:
            grammar = self._book.find(news.grammar_key)
            assert grammar is not None, "a run without its grammar is early"
            if isinstance(grammar, str):
                raise GrammarRefused(grammar)
            self._answers[news.run] = _Answer(grammar)
        answer = self._answers.get(news.run)
        if answer is None:
            raise EngineFailure("its grammar could not be followed")
        num_taken = answer.matcher.accept(news.token_ids)
        if num_taken < len(news.token_ids):
            raise EngineFailure(f"the grammar does not allow token {news.token_ids[num_taken]} where it stands")
        answer.token_ids.extend(news.token_ids)

    def _fail(self, epoch: int, run: int, message: str, status: int) -> None:
        self._answers.pop(run, None)
        self._times.num_failed += 1
        log_event("grammar.failed", run=run, error=message)
        self._post(MatcherFailed(epoch, run, f"the answer could not be kept to its format: {message}", status))
