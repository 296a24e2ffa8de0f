"""A streaming session as its client knows it, and how it is begun again after a death."""

from __future__ import annotations

import msgspec

from callboard.mailbox.messages.admission import AddInput, Admit
from callboard.mailbox.messages.requests import Finish


class Session:
    """What its client said, and where each turn ended as far as it was told."""

    def __init__(self, admit: Admit) -> None:
        self.admit = admit
        self.inputs: list[AddInput] = []
        self.ends: list[int] = []
        """Output tokens at the end of each turn."""

    @property
    def is_paused(self) -> bool:
        """It waits for input."""
        return len(self.ends) > len(self.inputs)

    @property
    def turn_start(self) -> int:
        """Output tokens before the turn that it is in, or that ended last."""
        starts = [0, *self.ends]
        return starts[-2] if self.is_paused else starts[-1]

    @property
    def has_said_all(self) -> bool:
        """No more input comes."""
        return any(event.is_last for event in self.inputs)

    def pause(self, finish: Finish) -> None:
        """A turn has ended."""
        assert not self.is_paused, f"two ends of a turn: {self.ends}, {self.inputs}, {finish}"
        self.ends.append(sum(self.ends[-1:]) + finish.usage.completion_tokens)

    def cut(self, num_tokens: int) -> None:
        """Its client gave up what stands behind so many tokens; if the turn is not over that ends it."""
        if self.is_paused:
            self.ends[-1] = num_tokens

    def begin_again(self, output: list[int], attempt: int, tokenizer: str) -> Admit:
        """What the next attempt sends: all up to the last input, and what was said behind it."""
        starts = [0, *self.ends]
        prompt = list(self.admit.prompt_token_ids)
        for start, end, event in zip(starts, self.ends, self.inputs, strict=False):
            prompt += [*output[start:end], *event.token_ids]
        if self.is_paused:
            prompt += output[starts[-2] : starts[-1]]
        return msgspec.structs.replace(
            self.admit,
            attempt=attempt,
            tokenizer=tokenizer,
            prompt_token_ids=prompt,
            output_token_ids=output[starts[-1] :],
            first_output_index=starts[-1],
            is_paused=self.is_paused,
            is_session=not self.has_said_all,
        )
