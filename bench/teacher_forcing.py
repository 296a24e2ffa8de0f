"""What a model says of texts that it is given, and what it writes by itself, step by step as it serves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
import numpy as np
import numpy.typing as npt

from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import PromptLogprobs
from .runner_here import RunnerHere, Tokens


class StepShape(msgspec.Struct, frozen=True):
    """How windows are computed: so many at once, so many tokens of each a step. `1 x 512` is a prefill, `16 x 1` are
    decodes: kernels and formats may differ between the two."""

    num_rows: int
    num_tokens: int

    @classmethod
    def parse(cls, text: str) -> StepShape:
        """`ROWSxTOKENS`. Raises ValueError."""
        rows, _, tokens = text.partition("x")
        shape = cls(int(rows), int(tokens))
        if min(shape.num_rows, shape.num_tokens) < 1:
            raise ValueError(f"{text!r} computes nothing")
        return shape

    def __str__(self) -> str:
        return f"{self.num_rows} x {self.num_tokens}"


class Scores(msgspec.Struct, frozen=True):
    """Of every token of all windows but the first of each, in their order."""

    logprobs: npt.NDArray[np.float32]
    """Of the token that stands there, natural logarithm."""
    best_ids: npt.NDArray[np.int32]
    """The most likely one in its place."""

    @property
    def perplexity(self) -> float:
        return math.exp(-float(self.logprobs.mean(dtype=np.float64)))

    def agreement(self, other: Scores) -> float:
        """Share of the places with the same most likely token."""
        return float((self.best_ids == other.best_ids).mean())


def score(runner: RunnerHere, windows: Sequence[Tokens], shape: StepShape) -> Scores:
    """Compute all windows, each with its own tokens as context."""
    sampling = SamplingParams(seed=0, temperature=0.0, prompt_logprobs=1)
    logprobs, best_ids = [], []
    for group in _groups(windows, shape.num_rows):
        of_row = [np.empty(len(window) - 1, np.float32) for window in group]
        best_of_row = [np.empty(len(window) - 1, np.int32) for window in group]
        for result in runner.prompt_steps(group, sampling, shape.num_tokens, samples=False):
            if result.prompt_logprobs is not None:
                _scatter(result.prompt_logprobs, of_row, best_of_row)
        logprobs += of_row
        best_ids += best_of_row
    return Scores(np.concatenate(logprobs), np.concatenate(best_ids))


def write_greedily(runner: RunnerHere, prompts: Sequence[Tokens], num_tokens: int) -> npt.NDArray[np.int32]:
    """[number of prompts, num_tokens]: the most likely continuation of each, all in one batch."""
    sampling = SamplingParams(seed=0, temperature=0.0, ignore_eos=True)
    written = np.empty((len(prompts), num_tokens), np.int32)
    for result in runner.prompt_steps(prompts, sampling, max(map(len, prompts)), samples=True):
        written[:, 0] = np.frombuffer(result.token_ids, "<i4")
    starts = np.array([len(prompt) for prompt in prompts], np.int32)
    for index in range(1, num_tokens):
        written[:, index] = np.frombuffer(runner.decode_step(starts + index - 1).token_ids, "<i4")
    return written


def equal_lengths(one: npt.NDArray[np.int32], other: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """[number of rows]: tokens before the first difference; both: [number of rows, num_tokens]."""
    counts: npt.NDArray[np.int64] = np.logical_and.accumulate(one == other, axis=1).sum(axis=1)
    return counts


def _groups(windows: Sequence[Tokens], size: int) -> Iterator[list[Tokens]]:
    rest = iter(windows)
    while group := list(islice(rest, size)):
        yield group


def _scatter(
    pieces: PromptLogprobs, of_row: list[npt.NDArray[np.float32]], best_of_row: list[npt.NDArray[np.int32]]
) -> None:
    """Row i has run i."""
    runs, starts = np.frombuffer(pieces.runs, "<i8").tolist(), np.frombuffer(pieces.starts, "<i4").tolist()
    counts, logprobs = np.frombuffer(pieces.counts, "<i4").tolist(), np.frombuffer(pieces.logprobs, "<f4")
    best = np.frombuffer(pieces.top_ids, "<i4").reshape(len(logprobs), -1)[:, 0]
    begin = 0
    for run, start, count in zip(runs, starts, counts, strict=True):
        of_row[run][start - 1 : start - 1 + count] = logprobs[begin : begin + count]
        best_of_row[run][start - 1 : start - 1 + count] = best[begin : begin + count]
        begin += count
