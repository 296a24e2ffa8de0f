"""What the tokenizer actor keeps for one request: its text so far, and where it ends."""

from __future__ import annotations

from ..mailbox.messages.requests import Finish, Generate, TokenLogprobs, TokenText, Usage
from ..text import Detokenizer, StopStrings, Tokenizer


class TextState:
    """Ids to text for one choice of one request: incremental detokenizer, stop strings, counts."""

    def __init__(self, tokenizer: Tokenizer, generate: Generate, choice: int, prompt_token_ids: list[int]) -> None:
        self.generate = generate
        self.choice = choice
        self.attempt = generate.attempt
        self.prompt_token_ids = prompt_token_ids
        self.num_tokens = 0
        """Output tokens seen: the position of the next."""
        self.cached_tokens = 0
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(generate.sampling.stop) if generate.sampling.stop else None

    def usage(self) -> Usage:
        return Usage(len(self.prompt_token_ids), self.num_tokens, self.cached_tokens)

    def push(self, token_ids: list[int], finish: Finish | None) -> tuple[list[int], str, Finish | None]:
        """Returns the ids that count, the text that is certain, and the terminal mark if the request ends here.

        The first stop in token order wins: a stop string found on the way cuts the ids behind its last token, and
        the scheduler's own mark, which belongs to the last id, is then void.
        """
        if self._stops is None:
            self.num_tokens += len(token_ids)
            text = self._detokenizer.push(token_ids)
            return token_ids, text + self._detokenizer.finish() if finish else text, finish
        visible = []
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
        """The text held back, for a request that ends without a token (an abort)."""
        tail = self._detokenizer.finish()
        if self._stops is None:
            return tail
        text, match = self._stops.push(tail)
        return text if match is not None else text + self._stops.finish()

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
