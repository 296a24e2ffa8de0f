"""What the tokenizer actor keeps for one choice of a request: its text so far, and where it ends."""

from __future__ import annotations

from ..errors import EngineFailure
from ..mailbox.messages.requests import Delivered, Finish, Generate, TokenLogprobs, TokenText, Usage
from ..text import Detokenizer, StopStrings, Tokenizer


class TextState:
    """Ids to text: incremental detokenizer, stop strings, counts.

    Detokenizer and stop strings are functions of the ids alone, however these are cut. So the state of a resumed choice
    is rebuilt from the ids that its frontend has, and goes on with exactly the text that was to come.
    """

    def __init__(
        self, tokenizer: Tokenizer, generate: Generate, delivered: Delivered, prompt_token_ids: list[int]
    ) -> None:
        """Cheap: the ids in `delivered` are looked at by `catch_up`."""
        self.generate = generate
        self.choice = delivered.choice
        self.attempt = generate.attempt
        self.prompt_token_ids = prompt_token_ids
        self.num_tokens = len(delivered.token_ids)
        """Output tokens seen: the position of the next."""
        self.cached_tokens = 0
        self._delivered: Delivered | None = delivered if delivered.token_ids else None
        """Until `catch_up` has fed it."""
        self._owed = ""
        """Text that is certain, of ids that the frontend has, and that it does not have; goes out with the next."""
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(generate.sampling.stop) if generate.sampling.stop else None

    def usage(self) -> Usage:
        return Usage(len(self.prompt_token_ids), self.num_tokens, self.cached_tokens)

    def catch_up(self) -> None:
        """Rebuild the state from the ids delivered; takes as long as detokenizing them, so it is called in a thread.

        Raises EngineFailure if the text delivered cannot be theirs.
        """
        if self._delivered is None:
            return
        delivered, self._delivered = self._delivered, None
        self.num_tokens = 0
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
        if self._stops is None:
            self.num_tokens += len(token_ids)
            visible.append(self._detokenizer.push(token_ids))
            if finish is not None:
                visible.append(self._detokenizer.finish())
            return token_ids, "".join(visible), finish
        for index, token_id in enumerate(token_ids):
            self.num_tokens += 1
            text, match = self._stops.push(self._detokenizer.push([token_id]))
            visible.append(text)
            if match is not None:
                return token_ids[: index + 1], "".join(visible), Finish("stop", self.usage(), match)
        if finish is not None:
            text, match = self._stops.push(self._detokenizer.finish())
            visible.append(text)
            if match is not None:
                finish = Finish("stop", self.usage(), match)
            else:
                visible.append(self._stops.finish())
        return token_ids, "".join(visible), finish

    def flush(self) -> str:
        """The text held back, for a choice that ends without a token (an abort)."""
        self.catch_up()
        text, self._owed = self._owed, ""
        tail = self._detokenizer.finish()
        if self._stops is None:
            return text + tail
        shown, match = self._stops.push(tail)
        return text + shown if match is not None else text + shown + self._stops.finish()

    def describe(self, logprobs: list[TokenLogprobs]) -> list[TokenText]:
        """Log-probabilities with each token as text and as bytes."""
        text, data = self._tokenizer.token_text, self._tokenizer.token_bytes
        return [
            TokenText(
                text(entry.token_id),
                data(entry.token_id),
                entry.logprob,
                [(text(i), data(i), p) for i, p in zip(entry.top_ids, entry.top_logprobs, strict=True)],
            )
            for entry in logprobs
        ]
