"""A streaming session as its client knows it, and how it is begun again after a death."""

from __future__ import annotations

import msgspec

from callboard.mailbox.messages.admission import AddInput, Admit


class Session:
    """What its client said, and where each turn ended as far as it was told, or ended it itself."""

    def __init__(self, admit: Admit) -> None:
        self.admit = admit
        self.inputs: list[AddInput] = []
        self.ends: list[int] = []
        """Output tokens at the end of each turn."""

    @property
    def is_paused(self) -> bool:
        """It waits for input, as far as its client knows."""
        return len(self.ends) > len(self.inputs)

    def cut(self, num_tokens: int) -> None:
        """Its client ended the turn, or cut the end of the one that is over."""
        if self.is_paused:
            self.ends.pop()
        self.ends.append(num_tokens)

    def begin_again(self, output: list[int], attempt: int, tokenizer: str) -> tuple[Admit, list[AddInput]]:
        """What the next attempt sends: all up to the last input that its client saw taken, then the others."""
        starts = [0, *self.ends]
        used = self.inputs[: len(self.ends)]
        prompt = list(self.admit.prompt_token_ids)
        for start, end, event in zip(starts, self.ends, used, strict=False):
            prompt += [*output[start:end], *event.token_ids]
        if self.is_paused:
            prompt += output[starts[-2] : starts[-1]]
        admit = msgspec.structs.replace(
            self.admit,
            attempt=attempt,
            tokenizer=tokenizer,
            prompt_token_ids=prompt,
            output_token_ids=output[starts[-1] :],
            num_earlier_tokens=starts[-1],
            is_paused=self.is_paused,
            is_session=not any(event.is_last for event in used),
        )
        rest = [msgspec.structs.replace(event, attempt=attempt) for event in self.inputs[len(self.ends) :]]
        return admit, rest
