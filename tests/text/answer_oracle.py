"""What an answer's text must be, worked out on the whole text at once; and the ways to make it piece by piece."""

from __future__ import annotations

from typing import NamedTuple

from callboard.actors.text_state import TextState
from callboard.mailbox.messages.requests import Delivered, Finish, Generate, TokenPrompt, Usage
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.text import Detokenizer, Tokenizer

LENGTH = Finish("length", Usage(1, 0, 0))


class Answer(NamedTuple):
    num_tokens: int
    text: str
    stop: str | None


def make_state(tokenizer: Tokenizer, sampling: SamplingParams, delivered: Delivered | None = None) -> TextState:
    generate = Generate("r", 1, "frontend", "tokenizer", "scheduler", TokenPrompt([1]), sampling, 0)
    return TextState(tokenizer, generate, delivered or Delivered(0, [], 0), [1])


def expected_answer(tokenizer: Tokenizer, ids: list[int], sampling: SamplingParams, *, is_over: bool = True) -> Answer:
    """The stop string that is complete first behind the text of `min_tokens` tokens, the longest of those, cuts it.

    `is_over`: no more tokens come, so bytes that are no whole character have become U+FFFD.
    """
    detokenizer = Detokenizer(tokenizer, sampling.skip_special_tokens, is_continuation=True)
    ends = [0]
    text = ""
    for token_id in ids:
        text += detokenizer.push([token_id])
        ends.append(len(text))
    if is_over:
        text += detokenizer.finish()
    border = ends[sampling.min_tokens] if sampling.min_tokens < len(ids) else len(text)
    for end in range(border + 1, len(text) + 1):
        found = [stop for stop in sampling.stop if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            num_tokens = next((number for number, place in enumerate(ends) if place >= end), len(ids))
            cut = end if sampling.include_stop_str_in_output else end - len(longest)
            return Answer(num_tokens, text[:cut], longest)
    return Answer(len(ids), text, None)


def run(state: TextState, ids: list[int], sizes: list[int]) -> tuple[list[tuple[int, str]], Finish]:
    """Feed `ids` in pieces, the last with its end: [(ids that count, new text) of each], the end."""
    deltas = []
    while True:
        size = sizes[len(deltas) % len(sizes)]
        piece, ids = ids[:size], ids[size:]
        counted, text, end = state.push(piece, None if ids else LENGTH)
        deltas.append((len(counted), text))
        if end is not None:
            return deltas, end


def answer_in_pieces(tokenizer: Tokenizer, ids: list[int], sampling: SamplingParams, sizes: list[int]) -> Answer:
    deltas, end = run(make_state(tokenizer, sampling), ids, sizes)
    assert (end.reason == "stop") == (end.stop_reason is not None)
    return Answer(sum(size for size, _ in deltas), "".join(text for _, text in deltas), end.stop_reason)
