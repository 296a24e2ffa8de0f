"""What the client of one request has seen, and whether it is what it should have seen."""

from __future__ import annotations

from collections.abc import Callable

from callboard.actors.frontend import Frontend, Stream
from callboard.actors.frontend_api import Delta
from callboard.errors import EngineFailure, RequestError
from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.requests import Finish, PromptDetails
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.request import RequestKey
from callboard.tests.actors.delivery_parts import TOKEN_BYTES, text_of, true_answer
from callboard.tests.scheduling.fake_model import prompt_entries, true_end


class Answer:
    """One choice as it has arrived."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.text = ""
        self.finish: Finish | None = None
        self.prompt: PromptDetails | None = None


class Reader:
    """The client of one request."""

    def __init__(
        self,
        frontend: Frontend,
        stream: Stream,
        prompt: str,
        sampling: SamplingParams,
        num_choices: int,
        returns_prompt: bool,
    ) -> None:
        self.frontend, self.stream, self.prompt, self.sampling = frontend, stream, prompt, sampling
        self.returns_prompt = returns_prompt or sampling.prompt_logprobs is not None
        self.answers = [Answer() for _ in range(num_choices)]
        self.error: RequestError | None = None
        self.is_closed = False
        """By the client."""
        self.is_lost = False
        """Its frontend died."""
        self.is_aborted = False
        """By the frontend itself: its terminal event still comes."""
        self.has_stopped_reading = False
        """The stream is over."""

    @property
    def request_id(self) -> str:
        return self.stream.request_id

    @property
    def is_over(self) -> bool:
        """Nobody waits for anything of this request."""
        return self.is_closed or self.is_lost or self.stream.is_ended

    @property
    def is_unwanted(self) -> bool:
        """Nothing should work for it any longer."""
        return self.is_over or self.is_aborted

    @property
    def can_take(self) -> bool:
        """A delta, or the end, waits to be read."""
        return not (self.is_closed or self.is_lost or self.has_stopped_reading) and self.stream._arrived.is_set()

    def take(self) -> None:
        """Read once, if there is something to read."""
        step = self.stream.__anext__()
        try:
            step.send(None)
        except StopIteration as stop:
            self.see(stop.value)
        except RequestError as error:
            assert self.error is None and any(answer.finish is None for answer in self.answers)
            self.error, self.has_stopped_reading = error, True
        except StopAsyncIteration:
            assert all(answer.finish is not None for answer in self.answers), "the stream ends before its answers"
            self.has_stopped_reading = True
        else:
            raise AssertionError("a stream with something to read waits")

    def see(self, delta: Delta) -> None:
        answer = self.answers[delta.choice]
        assert answer.finish is None, "something after the terminal event"
        assert delta.position == len(answer.token_ids), f"at {delta.position}, {len(answer.token_ids)} is next"
        wanted = self.sampling.logprobs is not None
        assert (delta.logprobs is not None) == (wanted and bool(delta.token_ids))
        for token_id, entry in zip(delta.token_ids, delta.logprobs or (), strict=wanted):
            assert (entry.data, entry.logprob) == (TOKEN_BYTES[token_id] or b"<eos>", -token_id / 4)
        if delta.prompt is not None:
            assert self.returns_prompt and answer.prompt is None and not answer.token_ids
            answer.prompt = delta.prompt
        answer.token_ids += delta.token_ids
        answer.text += delta.text
        answer.finish = delta.finish

    # The end

    def check(
        self,
        admits: dict[RequestKey, Admit],
        limits: SchedulerLimits,
        excuse: Callable[[RequestKey], str],
        has_deaths: bool,
    ) -> None:
        """Everything that came is right, and if somebody waits for it all of it came.

        `excuse`: why a choice may have ended with an error, or empty. `has_deaths`: somebody died, so an abort may
        have ended here without the text that was held back.
        """
        is_waited_for = not self.is_closed and not self.is_lost
        if self.error is not None:
            is_refusal = self.error.status == 429
            assert is_refusal or excuse((self.request_id, 0)), f"{self.request_id} ended with an error: {self.error}"
            assert not is_refusal or not isinstance(self.error, EngineFailure)
        for choice, answer in enumerate(self.answers):
            admit = admits.get((self.request_id, choice))
            if admit is None:  # aborted, refused or lost before it was admitted
                assert (answer.token_ids, answer.text) == ([], "")
            else:
                self._check_so_far(answer, admit, limits)
            if answer.finish is not None:
                why = excuse((self.request_id, choice))
                self._check_end(answer, answer.finish, admit, limits, why, has_deaths)
            else:
                assert not is_waited_for or self.error is not None, f"{self.request_id} has no terminal event"

    def _check_so_far(self, answer: Answer, admit: Admit, limits: SchedulerLimits) -> None:
        token_ids, text, _, _ = true_answer(*true_end(admit, limits), self.sampling)
        assert answer.token_ids == token_ids[: len(answer.token_ids)]
        if answer.finish is None:
            assert answer.text == text[: len(answer.text)]
            if answer.token_ids:
                self._check_prompt(answer, admit)

    def _check_prompt(self, answer: Answer, admit: Admit) -> None:
        """It has come, as it was asked for."""
        assert (answer.prompt is not None) == self.returns_prompt
        if answer.prompt is None:
            return
        assert answer.prompt.token_ids == admit.prompt_token_ids
        wanted = self.sampling.prompt_logprobs
        assert (answer.prompt.logprobs is not None) == (wanted is not None)
        true_entries = prompt_entries(admit.prompt_token_ids, wanted or 0)
        for entry, true_entry in zip(answer.prompt.logprobs or (), true_entries, strict=wanted is not None):
            assert entry.data == (TOKEN_BYTES[true_entry.token_id] or b"<eos>")
            assert (entry.logprob, entry.rank, entry.top_ids) == (
                true_entry.logprob,
                true_entry.rank,
                true_entry.top_ids,
            )
            assert [logprob for _, _, logprob in entry.top] == true_entry.top_logprobs

    def _check_end(
        self,
        answer: Answer,
        end: Finish,
        admit: Admit | None,
        limits: SchedulerLimits,
        excuse: str,
        has_deaths: bool,
    ) -> None:
        assert end.usage.completion_tokens == len(answer.token_ids)
        if end.reason == "abort":
            assert self.is_aborted, "an abort that nobody asked for"
            spelled = text_of(answer.token_ids)
            assert spelled.startswith(answer.text)
            assert has_deaths or answer.text == spelled, "the text that was held back comes with the end"
            return
        assert admit is not None
        if end.reason == "error":
            assert excuse, f"{self.request_id} ended with an error: {end.message}"
            assert text_of(answer.token_ids).startswith(answer.text)
            return
        got = (answer.token_ids, answer.text, end.reason, end.stop_reason)
        assert got == true_answer(*true_end(admit, limits), self.sampling)
        assert end.usage.prompt_tokens == len(admit.prompt_token_ids)
        self._check_prompt(answer, admit)
