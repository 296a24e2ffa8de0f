"""What the tokenizer actor keeps for one choice of a request: its text so far, and where it ends."""

from __future__ import annotations

from ..errors import EngineFailure
from ..mailbox.messages.requests import (
    Delivered,
    Finish,
    Generate,
    PromptDetails,
    ReasoningState,
    TokenLogprobs,
    TokenText,
    Usage,
)
from ..text import Detokenizer, StopStrings, Tokenizer
from .session_turn import SessionTurn


class TextState:
    """Ids to text: incremental detokenizer, stop strings, counts.

    Detokenizer and stop strings are functions of the ids alone, however these are cut. So the state of a resumed choice
    is rebuilt from the ids that its frontend has, and goes on with exactly the text that was to come.

    Stop strings are looked for in the text that comes behind the first `min_tokens` tokens, as in vLLM: one that these
    complete is passed by for good, one that begins in them and is completed later ends the choice. The token of
    `stop_token_ids`, or of the end of sequence, that ends a choice has no text, unless `include_stop_str_in_output`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        generate: Generate,
        delivered: Delivered,
        prompt_token_ids: list[int],
        prompt_text: str | None = None,
        first_output_index: int = 0,
        turn: SessionTurn | None = None,
    ) -> None:
        """Cheap: the ids in `delivered` are looked at by `catch_up`. With a `prompt_text` the first delta of the choice
        carries the `PromptDetails`. `turn`: of a streaming session; it begins at `first_output_index`, its prompt is
        all that stands before, and `delivered` is what the frontend has of it alone."""
        sampling = generate.sampling
        self.generate = generate
        self.choice = delivered.choice
        self.attempt = generate.attempt
        self.prompt_token_ids = prompt_token_ids
        self.num_tokens = first_output_index + len(delivered.token_ids)
        """Output tokens seen: the position of the next."""
        self.cached_tokens = 0
        self.num_context_tokens = len(prompt_token_ids)
        """Before the output; of a session before that of its present turn."""
        self.turn = turn
        self._first_output_index = first_output_index
        has_more = turn is None or not turn.is_paused  # of a turn that has ended nothing is to come
        self._delivered: Delivered | None = delivered if delivered.token_ids and has_more else None
        """Until `catch_up` has fed it."""
        self._owed = ""
        """Text that is certain, of ids that the frontend has, and that it does not have; goes out with the next."""
        self._tokenizer = tokenizer
        self._keeps_stop = sampling.include_stop_str_in_output
        self._kept_ids = tokenizer.special_ids(generate.kept_markers)
        self._begin_text()
        self._min_tokens = sampling.min_tokens
        self._prompt_text = None if self.num_tokens else prompt_text
        """None: not asked for, or delivered before."""
        self.reasoning: ReasoningState | None = None
        """Where the prompt has left it, until the first delta has told it; None: nothing to tell."""

    def _begin_text(self) -> None:
        sampling = self.generate.sampling
        self._detokenizer = Detokenizer(
            self._tokenizer, sampling.skip_special_tokens, is_continuation=True, kept=self._kept_ids
        )
        self._stops = StopStrings(sampling.stop, keeps_match=self._keeps_stop) if sampling.stop else None

    def begin_turn(self, num_input_tokens: int) -> None:
        """A session that has paused goes on behind its output so far and the input: that is the prompt of this turn."""
        self.num_context_tokens += self.num_turn_tokens + num_input_tokens
        self._first_output_index = self.num_tokens
        self.cached_tokens = 0
        self._begin_text()

    @property
    def num_turn_tokens(self) -> int:
        """Output tokens seen, of a session those of its present turn."""
        return self.num_tokens - self._first_output_index

    def usage(self) -> Usage:
        return Usage(self.num_context_tokens, self.num_turn_tokens, self.cached_tokens)

    def catch_up(self) -> None:
        """Rebuild the state from the ids delivered; takes as long as detokenizing them, so it is called in a thread.

        Raises EngineFailure if the text delivered cannot be theirs.
        """
        if self._delivered is None:
            return
        delivered, self._delivered = self._delivered, None
        self.num_tokens = self._first_output_index
        _, text, end = self.push(delivered.token_ids, None)
        if end is not None or len(text) < delivered.num_chars:
            raise EngineFailure(
                f"resumed with {delivered.num_chars:,} characters and {len(delivered.token_ids):,} tokens; these spell "
                f"{len(text):,}" + (f" and end at the stop string {end.stop_reason!r}" if end else "")
            )
        self._owed = text[delivered.num_chars :]

    def push(self, token_ids: list[int], finish: Finish | None) -> tuple[list[int], str, Finish | None]:
        """Returns the ids that count, the text that is certain, and the terminal mark if the choice ends here.

        The first stop in token order wins: a stop string found on the way cuts the ids behind its last token, and
        the scheduler's own mark, which belongs to the last id, is then void.
        """
        assert self._delivered is None, "tokens before the state has caught up"
        visible = [self._owed]
        self._owed = ""
        is_mark = finish is not None and finish.reason == "stop" and not self._keeps_stop
        spelt = token_ids[:-1] if is_mark else token_ids
        if self._stops is None:
            visible.append(self._detokenizer.push(spelt))
        else:
            for index, token_id in enumerate(spelt):
                self.num_tokens += 1
                text, match = self._search(self._detokenizer.push([token_id]))
                visible.append(text)
                if match is not None:
                    return token_ids[: index + 1], "".join(visible), Finish("stop", self.usage(), match)
            self.num_tokens -= len(spelt)
        self.num_tokens += len(token_ids)
        if finish is not None:
            text, match = self._finish_text()
            visible.append(text)
            if match is not None:
                finish = Finish("stop", self.usage(), match)
        return token_ids, "".join(visible), finish

    def flush(self) -> str:
        """The text held back, for a choice that ends without a token (an abort)."""
        self.catch_up()
        text, self._owed = self._owed, ""
        return text + self._finish_text()[0]

    def _search(self, text: str) -> tuple[str, str | None]:
        """What may be shown of the text of token number `num_tokens`, and the stop string that it completes."""
        assert self._stops is not None
        if self.num_turn_tokens <= self._min_tokens:
            return self._stops.pass_by(text), None
        return self._stops.push(text)

    def _finish_text(self) -> tuple[str, str | None]:
        """The text that is left when no more tokens come, and the stop string that is found in it after all."""
        tail = self._detokenizer.finish()
        if self._stops is None:
            return tail, None
        shown, match = self._search(tail)
        return (shown, match) if match is not None else (shown + self._stops.finish(), None)

    def take_prompt(self, logprobs: list[TokenLogprobs] | None) -> PromptDetails | None:
        """What the first delta of the choice carries beside its tokens, if it was asked for; None from then on."""
        text, self._prompt_text = self._prompt_text, None
        if text is None:
            return None
        if logprobs is None and self.generate.sampling.prompt_logprobs is not None and len(self.prompt_token_ids) == 1:
            logprobs = []  # there are none of the first token
        return PromptDetails(self.prompt_token_ids, text, None if logprobs is None else self.describe(logprobs))

    def describe(self, logprobs: list[TokenLogprobs]) -> list[TokenText]:
        """Log-probabilities with each token as text and as bytes."""
        spelt: dict[int, tuple[str, bytes]] = {}  # of a long prompt, the same tokens come again and again

        def spell(token_id: int) -> tuple[str, bytes]:
            if token_id not in spelt:
                spelt[token_id] = self._tokenizer.token_text(token_id), self._tokenizer.token_bytes(token_id)
            return spelt[token_id]

        return [
            TokenText(
                *spell(entry.token_id),
                entry.logprob,
                [(*spell(i), p) for i, p in zip(entry.top_ids, entry.top_logprobs, strict=True)],
                entry.top_ids,
                entry.rank,
            )
            for entry in logprobs
        ]
