"""The tokenizer actor: prompts to ids on the way in; ids to text and the one terminal event on the way out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

import msgspec

from ..errors import EngineFailure, InvalidRequest, Overloaded, ProtocolViolation, RequestError
from ..mailbox import Inbox
from ..mailbox.messages.admission import (
    Admit,
    SchedulerToTokenizer,
    Stop,
    TokenDeltas,
    TokenizerToScheduler,
)
from ..mailbox.messages.requests import (
    Abort,
    ChatPrompt,
    Finish,
    FrontendToTokenizer,
    Generate,
    Refused,
    TextPrompt,
    TokenizerToFrontend,
    TokenPrompt,
    TokenText,
)
from ..mailbox.messages.sampling import SamplingParams
from ..text import Tokenizer
from .faults import Faults
from .sender import Sender
from .text_deltas import TextDeltaBuffer
from .text_state import TextState

TokenizerInbound = FrontendToTokenizer | SchedulerToTokenizer


class TokenizerActor:
    """Encodes in threads, detokenizes on the loop. One `TextState` for each admitted request."""

    def __init__(
        self,
        name: str,
        inbox: Inbox[TokenizerInbound],
        tokenizer: Tokenizer,
        schedulers: Mapping[str, Sender[TokenizerToScheduler]],
        frontends: Mapping[str, Sender[TokenizerToFrontend]],
        faults: Faults,
        *,
        max_model_len: int,
        max_encodings: int,
        eos_token_ids: tuple[int, ...],
        encoder_threads: int = 1,
    ) -> None:
        self.name = name
        self.inbox = inbox
        self.faults = faults
        self._tokenizer = tokenizer
        self._schedulers = schedulers
        self._frontends = frontends
        self._max_model_len = max_model_len
        self._max_encodings = max_encodings
        self._eos_token_ids = eos_token_ids
        self._states: dict[tuple[str, int], TextState] = {}
        self._encoding: dict[str, Generate] = {}
        """Requests whose prompt is being encoded; an abort takes one out, which cancels its admission."""
        self._num_encodings = 0
        """Prompts that wait for a thread or are in one, those of aborted requests included."""
        self._threads = ThreadPoolExecutor(encoder_threads, thread_name_prefix="encode")
        self._unsent = TextDeltaBuffer()
        for sender in frontends.values():
            sender.on_room = self.flush

    def handle(self, message: TokenizerInbound) -> None:
        match message:
            case TokenDeltas():
                for row in range(len(message.request_ids)):
                    self._take_row(message, row)
            case Generate():
                self._encode_soon(message)
            case Abort():
                self._abort(message)
            case Refused():
                self._refused(message)
            case _:
                assert_never(message)

    def flush(self) -> None:
        """One message a frontend. Where there is no room the rows stay and later tokens merge into them."""
        for frontend in self._unsent.frontends():
            sender = self._frontends[frontend]
            if not sender.is_blocked:
                sender.post(self._unsent.take(frontend))

    # In: prompts

    def _encode_soon(self, generate: Generate) -> None:
        is_full = self._num_encodings >= self._max_encodings
        self._encoding[generate.request_id] = generate
        if is_full:
            limit = f"{self._max_encodings:,} prompts wait to be encoded, as many as may (max_queued_requests)"
            self._refuse(generate, Overloaded(limit, retry_after_s=1))
        elif not all(generate.sampling.stop):
            self._refuse(generate, InvalidRequest("stop must not hold an empty string", param="stop"))
        else:
            self._num_encodings += 1
            self.faults.start(self._admit(generate))

    async def _admit(self, generate: Generate) -> None:
        loop = asyncio.get_running_loop()
        try:
            ids = await loop.run_in_executor(self._threads, self._encode, generate)
            if not self._is_wanted(generate):
                return  # aborted while it was encoded
            prompt_param = "messages" if isinstance(generate.prompt, ChatPrompt) else "prompt"
            sampling = self._check(ids, generate.sampling, prompt_param)
        except RequestError as error:
            self._refuse(generate, error)
            return
        except Exception as error:  # it belongs to this request alone: the template, or text that no tokenizer takes
            self._refuse(generate, EngineFailure(f"the prompt could not be encoded: {type(error).__name__}: {error}"))
            return
        finally:
            self._num_encodings -= 1
        del self._encoding[generate.request_id]
        self._states[generate.request_id, 0] = TextState(self._tokenizer, generate, 0, ids)
        self._schedulers[generate.scheduler].post(
            Admit(
                request_id=generate.request_id,
                choice=0,
                attempt=generate.attempt,
                tokenizer=self.name,
                prompt_token_ids=ids,
                sampling=sampling,
                eos_token_ids=self._eos_token_ids,
                arrival_ns=generate.arrival_ns,
                cache_salt=generate.cache_salt,
            )
        )

    def _is_wanted(self, generate: Generate) -> bool:
        """The request was neither aborted nor refused; also asked from threads."""
        return self._encoding.get(generate.request_id) is generate

    def _encode(self, generate: Generate) -> list[int]:
        """In a thread. The prompt of a request that was aborted while it waited is not looked at."""
        if not self._is_wanted(generate):
            return []
        match generate.prompt:
            case TokenPrompt(token_ids):
                return token_ids
            case TextPrompt(text):
                return self._encode_text(text, "prompt", add_special_tokens=True)
            case ChatPrompt(messages):
                template = self._tokenizer.chat_template
                if template is None:
                    raise InvalidRequest(
                        "the model has no chat template; use /v1/completions, or name one with model.chat_template",
                        param="messages",
                    )
                return self._encode_text(template.render(messages), "messages", add_special_tokens=False)
            case _:
                assert_never(generate.prompt)

    def _encode_text(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """A text that cannot fit is refused unread: others wait behind it for the encoder, megabytes take seconds."""
        fewest = self._tokenizer.fewest_tokens(text)
        if fewest >= self._max_model_len:
            raise InvalidRequest(
                f"prompt has {len(text):,} characters, which are at least {fewest:,} tokens, the limit is "
                f"{self._max_model_len - 1:,} (max_model_len {self._max_model_len:,}, less one to generate); "
                f"shorten it or raise max_model_len",
                code="context_length_exceeded",
                param=param,
            )
        return self._tokenizer.encode(text, add_special_tokens)

    def _check(self, ids: list[int], sampling: SamplingParams, prompt_param: str) -> SamplingParams:
        """The prompt's length against the model's; `max_tokens` gets its final value."""
        limit = self._max_model_len
        if not ids:
            raise InvalidRequest("the prompt has no tokens; give at least one", param=prompt_param)
        room = limit - len(ids)
        if room < 1:
            raise InvalidRequest(
                f"prompt has {len(ids):,} tokens, the limit is {limit - 1:,} "
                f"(max_model_len {limit:,}, less one to generate); shorten it or raise max_model_len",
                code="context_length_exceeded",
                param=prompt_param,
            )
        if sampling.max_tokens is None:
            return msgspec.structs.replace(sampling, max_tokens=room)
        if sampling.max_tokens > room:
            raise InvalidRequest(
                f"prompt has {len(ids):,} tokens and max_tokens is {sampling.max_tokens:,}, together "
                f"{len(ids) + sampling.max_tokens:,}; the limit is {limit:,} (max_model_len)",
                code="context_length_exceeded",
                param="max_tokens",
            )
        return sampling

    def _refuse(self, generate: Generate, error: RequestError) -> None:
        if not self._is_wanted(generate):
            return
        del self._encoding[generate.request_id]
        self._frontends[generate.frontend].post(
            Refused(
                generate.request_id,
                0,
                generate.attempt,
                error.status,
                error.type,
                error.message,
                error.param,
                error.code,
                error.retry_after_s,
            )
        )

    def _refused(self, refused: Refused) -> None:
        """The scheduler has no room: tell the frontend, forget the request."""
        state = self._states.get((refused.request_id, refused.choice))
        if state is not None and state.attempt == refused.attempt:
            del self._states[refused.request_id, refused.choice]
            self._frontends[state.generate.frontend].post(refused)

    def _abort(self, abort: Abort) -> None:
        """Ends every attempt up to its own, an encoding under way too, and always goes on to the scheduler."""
        state = self._states.get((abort.request_id, 0))
        encoding = self._encoding.get(abort.request_id)
        if encoding is not None and encoding.attempt <= abort.attempt:
            del self._encoding[abort.request_id]
            state = TextState(self._tokenizer, encoding, 0, [])
        if state is not None and state.attempt <= abort.attempt:
            self._states.pop((abort.request_id, 0), None)
            text = state.flush()
            self._unsent.add(state, state.num_tokens, [], text, Finish("abort", state.usage()), None, None)
        for scheduler in self._schedulers.values():
            scheduler.post(abort)

    # Out: tokens

    def _take_row(self, deltas: TokenDeltas, row: int) -> None:
        key = (deltas.request_ids[row], deltas.choices[row])
        state = self._states.get(key)
        if state is None or state.attempt != deltas.attempts[row]:
            return
        position = deltas.positions[row]
        if position > state.num_tokens:
            raise ProtocolViolation(f"{key[0]}: tokens at {position}, the tokenizer has {state.num_tokens}")
        known = state.num_tokens - position
        token_ids = deltas.token_ids[row][known:]
        finish = deltas.finishes.get(row)
        if not token_ids and finish is None:
            return
        is_first = state.num_tokens == 0
        position = state.num_tokens
        state.cached_tokens = deltas.cached_tokens[row]
        ids, text, end = state.push(token_ids, finish)
        logprobs = self._logprobs(state, deltas, row, known, len(ids))
        prompt = state.prompt_token_ids if is_first and state.generate.returns_prompt else None
        self._unsent.add(state, position, ids, text, end, logprobs, prompt)
        if end is not None:
            del self._states[key]
            if end is not finish:
                stop = Stop(key[0], key[1], state.attempt, state.num_tokens - 1)
                self._schedulers[state.generate.scheduler].post(stop)

    def _logprobs(
        self, state: TextState, deltas: TokenDeltas, row: int, known: int, count: int
    ) -> list[TokenText] | None:
        entries = deltas.logprobs.get(row)
        return None if entries is None else state.describe(entries[known : known + count])

    def close(self) -> None:
        self.faults.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for scheduler in self._schedulers.values():
            scheduler.close()
        for frontend in self._frontends.values():
            frontend.close()
        self.inbox.close()
