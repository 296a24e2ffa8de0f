"""The tokenizer actor: prompts to ids on the way in; ids to text and the one terminal event on the way out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TypeVar, assert_never

import msgspec

from ..errors import EngineFailure, InvalidRequest, Overloaded, ProtocolViolation, RequestError
from ..mailbox import Inbox
from ..mailbox.messages.admission import (
    AddInput,
    Admit,
    SchedulerToTokenizer,
    Stop,
    TokenDeltas,
    TokenizerToScheduler,
)
from ..mailbox.messages.grammar import Compile, Constraint, Release
from ..mailbox.messages.requests import (
    Abort,
    Answer,
    Delivered,
    Detokenize,
    Explain,
    Explanation,
    Extend,
    Finish,
    FrontendToTokenizer,
    Generate,
    Refused,
    Resume,
    Tokenize,
    TokenizerToFrontend,
)
from ..shm_queue import ProgressLine, mark_of
from ..text import Tokenizer
from .answers import Answers, OwnQuestion
from .deadlines import at_deadline, has_passed
from .faults import Faults
from .grammar_claims import GrammarClaims
from .prompt_encoder import EncodedPrompt, PromptEncoder
from .refusals import refused
from .sender import Sender
from .session_turn import SessionTurn, check_input, present_turn
from .text_deltas import TextDeltaBuffer
from .text_state import TextState
from .text_states import TextStates

_MOST = "as many as may (max_queued_requests + max_num_seqs)"

TokenizerInbound = FrontendToTokenizer | SchedulerToTokenizer
A = TypeVar("A")
T = TypeVar("T")


class TokenizerActor:
    """Encodes in threads, detokenizes on the loop. One `TextState` for each choice of an admitted request.

    A new request is one that is resumed from nothing: both take the same way, as a `Resume`.
    """

    def __init__(
        self,
        name: str,
        inbox: Inbox[TokenizerInbound],
        tokenizer: Tokenizer,
        schedulers: Mapping[str, Sender[TokenizerToScheduler]],
        frontends: Mapping[str, Sender[TokenizerToFrontend]],
        grammars: Mapping[str, Sender[Compile | Release]],
        progress: ProgressLine,
        faults: Faults,
        *,
        max_model_len: int,
        max_encodings: int,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.name = name
        self.inbox = inbox
        self.faults = faults
        self._progress = progress
        self._tokenizer = tokenizer
        self._encoder = PromptEncoder(tokenizer, max_model_len)
        self._answers = Answers(tokenizer, self._encoder, frontends)
        self._schedulers = schedulers
        self._frontends = frontends
        self._max_model_len = max_model_len
        self._max_encodings = max_encodings
        self._eos_token_ids = eos_token_ids
        self._grammars = GrammarClaims(name, grammars)
        self._states = TextStates(self._grammars.release)
        self._encoding: dict[str, Resume] = {}
        """Requests whose prompt is being encoded; an abort takes one out, which cancels its admission."""
        self._num_encodings = 0
        """Prompts and questions that wait for a thread or are in one, those of aborted requests included."""
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="encode")
        """One thread: prompts in parallel are for tokenizers of their own, and the progress line names one request."""
        self._unsent = TextDeltaBuffer()
        for sender in frontends.values():
            sender.on_room = self.flush

    def handle(self, message: TokenizerInbound) -> None:
        match message:
            case TokenDeltas():
                for row in range(len(message.request_ids)):
                    self._take_row(message, row)
            case Generate():
                self._encode_soon(Resume(message, [Delivered(i, [], 0) for i in range(message.num_choices)]))
            case Resume():
                self._resume(message)
            case Abort():
                self._abort(message)
            case Refused():
                self._refused(message)
            case Extend():
                self._num_encodings += 1
                self.faults.start(self._extend(message))
            case Tokenize() | Detokenize():
                self._answer_soon(message)
            case Explain():
                self._answers.add(message)
                self._tell_schedulers(message)
            case Explanation():
                self._answers.pass_on(message)
            case _:
                assert_never(message)

    def flush(self) -> None:
        """One message a frontend, as a rule. Where there is no room the rows stay and later tokens merge into them."""
        for frontend in self._unsent.frontends():
            sender = self._frontends[frontend]
            while self._unsent.has(frontend) and not sender.is_blocked:
                sender.post(self._unsent.take(frontend))

    # In: prompts

    def _encode_soon(self, resume: Resume) -> None:
        generate = resume.generate
        num_waiting = self._num_encodings + self._schedulers[generate.scheduler].num_kept
        is_full = num_waiting >= self._max_encodings and generate.attempt == 1  # what was taken is not refused
        self._encoding[generate.request_id] = resume
        if has_passed(generate.deadline_ns):
            self._expire(resume)
        elif is_full:
            limit = f"{num_waiting:,} prompts wait to be encoded or admitted, {_MOST}"
            self._refuse(resume, Overloaded(f"{limit}; try again later"))
        elif not all(generate.sampling.stop):
            self._refuse(resume, InvalidRequest("stop must not hold an empty string", param="stop"))
        elif generate.output_format is not None and not self._grammars.has_grammars:
            message = "answers cannot be held to a format: the engine's topology has no grammar actor"
            self._refuse(resume, InvalidRequest(message))
        else:
            self._num_encodings += 1
            self.faults.start(self._admit(resume))

    async def _admit(self, resume: Resume) -> None:
        generate = resume.generate
        try:
            with at_deadline(generate.deadline_ns, lambda: self._expire(resume), self.faults):
                prepared = await self._in_thread(self._prepare, resume)
        except RequestError as error:
            self._refuse(resume, error)
            return
        except Exception as error:  # it belongs to this request alone: the template, or text that no tokenizer takes
            self._refuse(resume, EngineFailure(f"the prompt could not be encoded: {type(error).__name__}: {error}"))
            return
        if prepared is None or not self._is_wanted(resume):
            return  # ended while it was encoded
        prompt, states = prepared
        del self._encoding[generate.request_id]
        turn = present_turn(resume)
        grammar_key, sampling = "", prompt.sampling
        if generate.output_format is not None:
            # Behind the end of what a grammar allows nothing can come: it is the end.
            sampling = msgspec.structs.replace(sampling, ignore_eos=False)
            grammar_key = self._grammars.claim(
                generate.request_id, Constraint(generate.output_format, prompt.reasoning_gate)
            )
        for delivered, state in zip(turn.delivered, states, strict=True):
            self._states.add(state)
            self._schedulers[generate.scheduler].post(
                Admit(
                    request_id=generate.request_id,
                    choice=delivered.choice,
                    attempt=generate.attempt,
                    tokenizer=self.name,
                    prompt_token_ids=prompt.token_ids,
                    sampling=sampling,
                    eos_token_ids=self._eos_token_ids,
                    arrival_ns=generate.arrival_ns,
                    cache_salt=generate.cache_salt,
                    output_token_ids=delivered.token_ids,
                    priority=generate.priority,
                    tenant=generate.tenant,
                    deadline_ns=generate.deadline_ns,
                    grammar_key=grammar_key,
                    is_session=not turn.is_last,
                    first_output_index=turn.first_output_index,
                    is_paused=turn.is_paused,
                )
            )

    def _prepare(self, resume: Resume) -> tuple[EncodedPrompt, Sequence[TextState]] | None:
        """In a thread. None, and the prompt is not looked at, for a request that was ended while it waited."""
        if not self._is_wanted(resume):
            return None
        generate = resume.generate
        with self._in_hand(generate.request_id):
            prompt = self._encoder.encode(generate)
            if resume.inputs:
                prompt = self._encoder.encode_turn(resume, prompt)
            states = self._states_of(resume, prompt.token_ids, prompt.text)
            for state in states:
                state.catch_up()
                if not state.num_tokens:
                    state.reasoning = prompt.reasoning_state
        return prompt, states

    def _answer_soon(self, question: OwnQuestion) -> None:
        self._answers.add(question)
        if self._num_encodings >= self._max_encodings and question.attempt == 1:
            limit = f"{self._num_encodings:,} prompts wait to be encoded, {_MOST}"
            self._answers.refuse(question, Overloaded(f"{limit}; try again later"))
        else:
            self._num_encodings += 1
            self.faults.start(self._answers.answer(question, partial(self._in_thread, self._find)))

    def _find(self, question: OwnQuestion) -> Answer | None:
        """In a thread."""
        with self._in_hand(question.request_id):
            return self._answers.find(question)

    # In: a session's next turn

    async def _extend(self, extend: Extend) -> None:
        """The thread takes prompts and inputs in their order: a session that is resumed is there when its input is."""
        error: RequestError
        try:
            input_ids = await self._in_thread(self._encode_input, extend)
        except RequestError as refusal:
            self._refuse_input(extend, refusal)
            return
        except Exception as fault:  # it belongs to this request alone
            error = EngineFailure(f"the input could not be encoded: {type(fault).__name__}: {fault}")
            self._refuse_input(extend, error)
            return
        state = self._paused(extend)
        if state is None or state.turn is None:
            return
        try:
            check_input(state.num_context_tokens + state.num_turn_tokens, input_ids, self._max_model_len)
        except InvalidRequest as refusal:
            self._refuse_input(extend, refusal)
            return
        is_last = extend.input.is_last
        state.begin_turn(len(input_ids))
        state.turn.go_on(is_last=is_last)
        message = AddInput(extend.request_id, state.choice, state.attempt, input_ids, is_last)
        self._schedulers[state.generate.scheduler].post(message)

    def _encode_input(self, extend: Extend) -> list[int]:
        """In a thread."""
        with self._in_hand(extend.request_id):
            return self._encoder.encode_input(extend.input.prompt)

    def _paused(self, extend: Extend) -> TextState | None:
        """The session that the input is for; None if it has ended, or a later attempt, which has the input too."""
        state = self._states.get((extend.request_id, 0))
        is_here = state is not None and state.attempt == extend.attempt
        return state if is_here else None

    def _refuse_input(self, extend: Extend, error: RequestError) -> None:
        """Input that cannot be taken ends the session."""
        state = self._paused(extend)
        if state is not None:
            self._states.remove(state)
            self._frontends[state.generate.frontend].post(refused(extend.request_id, extend.attempt, error))
            self._tell_schedulers(Abort(extend.request_id, extend.attempt, error.message))

    # Threads

    async def _in_thread(self, work: Callable[[A], T], argument: A) -> T:
        """What `work` returns or raises; it was counted in `_num_encodings` before."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, work, argument)
        finally:
            self._num_encodings -= 1

    @contextmanager
    def _in_hand(self, request_id: str) -> Iterator[None]:
        """In a thread: the progress line names the request meanwhile."""
        self._progress.working_on = mark_of(request_id)
        try:
            yield
        finally:
            self._progress.working_on = 0

    def _is_wanted(self, resume: Resume) -> bool:
        """The request was neither ended nor resumed anew; also asked from threads."""
        return self._encoding.get(resume.generate.request_id) is resume

    def _refuse(self, resume: Resume, error: RequestError) -> None:
        if not self._is_wanted(resume):
            return
        generate = resume.generate
        del self._encoding[generate.request_id]
        self._frontends[generate.frontend].post(refused(generate.request_id, generate.attempt, error))
        if generate.attempt > 1:  # the scheduler may know an earlier attempt
            self._tell_schedulers(Abort(generate.request_id, generate.attempt, error.message))

    def _expire(self, resume: Resume) -> None:
        """The deadline has passed and the prompt is not encoded: from admission on the scheduler sees to deadlines."""
        if not self._is_wanted(resume):
            return
        generate = resume.generate
        self._end(self._withdraw(generate.request_id, generate.attempt), "timeout")
        if generate.attempt > 1:  # the scheduler may know an earlier attempt
            self._tell_schedulers(Abort(generate.request_id, generate.attempt, "its deadline has passed"))
        self.flush()

    def _refused(self, message: Refused) -> None:
        """The scheduler has no room: tell the frontend, forget the request, and end the choices that it has taken."""
        state = self._states.get((message.request_id, message.choice))
        if state is None or state.attempt != message.attempt:
            return
        generate = state.generate
        if len(self._states.take(message.request_id, message.attempt)) > 1:
            self._tell_schedulers(Abort(message.request_id, message.attempt, "another choice was refused"))
        self._frontends[generate.frontend].post(message)

    # Ends and deaths

    def _resume(self, resume: Resume) -> None:
        """Replaces what is here of the request's earlier attempts; no terminal event of these is told to anybody."""
        generate = resume.generate
        self._withdraw(generate.request_id, generate.attempt - 1)
        self._encode_soon(resume)

    def _abort(self, abort: Abort) -> None:
        """Ends every attempt up to its own, an encoding under way too, and always goes on to the scheduler; only of a
        question that knows nothing."""
        if self._answers.withdraw(abort.request_id, abort.attempt):
            return
        self._end(self._withdraw(abort.request_id, abort.attempt), "abort")
        self._tell_schedulers(abort)

    def gone(self, actor: str) -> None:
        """`actor` died. A frontend's requests end, for nobody waits for them any more; those of a scheduler stay until
        their frontends resume them."""
        if self._grammars.is_of(actor):
            self._grammars.claim_again()
            return
        lost = {state.generate.request_id: state.attempt for state in self._states.of_frontend(actor)}
        for request_id, resume in self._encoding.items():
            if resume.generate.frontend == actor:
                lost[request_id] = resume.generate.attempt
        for request_id, attempt in lost.items():
            self._withdraw(request_id, attempt)
            self._tell_schedulers(Abort(request_id, attempt, f"{actor} died"))
        self._unsent.drop(actor)
        self._answers.withdraw_of(actor)

    def _withdraw(self, request_id: str, attempt: int) -> Sequence[TextState]:
        """Take out what is here of a request, its encoding included, if it is of an attempt up to `attempt`."""
        resume = self._encoding.get(request_id)
        if resume is not None and resume.generate.attempt <= attempt:
            del self._encoding[request_id]
            return self._states_of(resume, [])
        return self._states.take(request_id, attempt)

    def _states_of(self, resume: Resume, prompt_token_ids: list[int], text: str | None = None) -> Sequence[TextState]:
        """Of the choices of a request that goes on from `resume`. Cheap."""
        turn, generate = present_turn(resume), resume.generate
        return [
            TextState(
                self._tokenizer,
                generate,
                delivered,
                prompt_token_ids,
                text,
                turn.first_output_index,
                turn.session if generate.is_session else None,
            )
            for delivered in turn.delivered
        ]

    def _end(self, states: Sequence[TextState], reason: str, message: str | None = None) -> None:
        """The terminal event of choices that end without a token. If they did not fail it brings the text that was held
        back."""
        for state in states:
            position, text, finish = state.num_tokens, "", Finish(reason, state.usage(), message=message)
            if reason != "error":
                try:
                    text = state.flush()
                except Exception as error:  # it belongs to this request alone
                    finish = Finish("error", finish.usage, message=_text_failure(error))
            self._unsent.add(state, position, [], text, finish, None, None)

    def _tell_schedulers(self, message: Abort | Explain) -> None:
        for scheduler in self._schedulers.values():
            scheduler.post(message)

    # Out: tokens

    def _take_row(self, deltas: TokenDeltas, row: int) -> None:
        key = (deltas.request_ids[row], deltas.choices[row])
        state = self._states.get(key)
        if state is None or state.attempt != deltas.attempts[row]:
            return
        finish, pause = deltas.finishes.get(row), deltas.pauses.get(row)
        if state.turn is not None and (state.turn.is_paused or state.turn.awaits_mark):
            self._take_surplus(state, state.turn, finish, is_mark=pause is not None)
            return
        position = deltas.positions[row]
        if position > state.num_tokens:
            raise ProtocolViolation(f"{key[0]}: tokens at {position}, the tokenizer has {state.num_tokens}")
        known = state.num_tokens - position
        token_ids = deltas.token_ids[row][known:]
        mark = pause if finish is None else finish
        if not token_ids and mark is None:
            return
        state.cached_tokens = deltas.cached_tokens[row]
        position = state.num_tokens
        try:
            ids, text, end = state.push(token_ids, mark)
            prompt = state.take_prompt(deltas.prompt_logprobs.get(row))
            entries = deltas.logprobs.get(row)
            logprobs = None if entries is None else state.describe(entries[known : known + len(ids)])
        except Exception as error:  # it belongs to this request alone: the other rows go on
            self._fail(state, position, error)
            return
        if end is not None and finish is None and state.turn is not None and not state.turn.is_last:
            self._unsent.add(state, position, ids, text, None, logprobs, prompt, end)
            state.turn.pause(is_marked=pause is not None)
        else:
            self._unsent.add(state, position, ids, text, end, logprobs, prompt)
        if end is not None:
            if state.turn is None or not state.turn.is_paused:
                self._states.remove(state)
            if end is not mark:
                stop = Stop(key[0], key[1], state.attempt, state.num_tokens - 1)
                self._schedulers[state.generate.scheduler].post(stop)

    def _take_surplus(self, state: TextState, turn: SessionTurn, finish: Finish | None, *, is_mark: bool) -> None:
        """A row of a session whose turn has ended here: nothing in it counts but its marks. One is there for each turn;
        the end, by a deadline or an error, may come at any time."""
        if is_mark:
            turn.awaits_mark = False
        if finish is not None:
            self._states.remove(state)
            finish = msgspec.structs.replace(finish, usage=state.usage())
            self._unsent.add(state, state.num_tokens, [], "", finish, None, None)

    def _fail(self, state: TextState, position: int, error: Exception) -> None:
        """The text of a choice cannot be made beyond `position`: that request ends, with all its choices."""
        state.num_tokens = position
        request_id, message = state.generate.request_id, _text_failure(error)
        self._end(self._states.take(request_id, state.attempt), "error", message)
        self._tell_schedulers(Abort(request_id, state.attempt, message))

    def close(self) -> None:
        self.faults.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for scheduler in self._schedulers.values():
            scheduler.close()
        for frontend in self._frontends.values():
            frontend.close()
        self._grammars.close()
        self.inbox.close()


def _text_failure(error: Exception) -> str:
    return f"the answer's text could not be made: {type(error).__name__}: {error}"
