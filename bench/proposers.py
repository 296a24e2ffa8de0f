"""What a proposer of drafts costs: microseconds a row and step, and what taking in a prompt costs.

    python -m callboard.bench.proposers [--rows 1,16,64] [--tokens 200,2000,8000] [--drafts 8] [--steps 40] [--json]

Rows are made of phrases, frequent ones and rare ones, and "loop" is one token again and again, which has as many
occurrences as there can be. Before the steps each row has put out 2,000 tokens that all may be drafted from. In each
step each row has one token more. The first of each pair of figures is the median of the steps, the second the 90th
percentile. "prompt" is the first step of a row, in which suffix decoding takes it in.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
import numpy.typing as npt

from ..speculative.make_proposer import METHODS, make_proposer
from ..speculative.proposer import Int32s, Proposer
from .machine import describe_machine

_KINDS = ("phrases", "loop")
_SHARED_TOKENS = 2_000


def phrase_tokens(random: np.random.Generator, size: int, num_phrases: int = 400) -> Int32s:
    """int32 [size]: phrases of 2 to 11 tokens, the n-th frequent with a frequency of 1/n."""
    phrases = [random.integers(0, 50_000, length) for length in random.integers(2, 12, num_phrases)]
    shares = 1.0 / np.arange(1, num_phrases + 1)
    parts: list[npt.NDArray[np.int64]] = []
    while sum(part.size for part in parts) < size:
        parts += [phrases[i] for i in random.choice(num_phrases, 64, p=shares / shares.sum())]
    return np.concatenate(parts)[:size].astype(np.int32)


class Steps:
    """One batch whose rows grow by a token a step."""

    def __init__(self, method: str, kind: str, num_rows: int, num_tokens: int, num_drafts: int, num_steps: int) -> None:
        width = max(num_tokens + num_steps, _SHARED_TOKENS) + 2
        random = np.random.default_rng(1)
        text = phrase_tokens(random, 4 * width) if kind == "phrases" else np.full(4 * width, 7, np.int32)
        starts = random.integers(0, 3 * width, num_rows)
        self._token_ids = np.stack([text[start : start + width] for start in starts])
        self._rows = np.arange(num_rows, dtype=np.int32)
        self._limits = np.full(num_rows, num_drafts, np.int32)
        self._proposer: Proposer = make_proposer(method, {}, num_rows, width)
        self._share()
        self._known = np.full(num_rows, num_tokens, np.int32)

    def _share(self) -> None:
        known = np.full(self._rows.size, _SHARED_TOKENS, np.int32)
        self._follow(0)
        self._proposer.propose(self._rows, self._token_ids, known, self._limits)
        self._proposer.forget(self._rows)

    def _follow(self, num_given_tokens: int) -> None:
        for row in self._rows.tolist():
            self._proposer.follow(row, num_given_tokens, "everybody")

    def prompt_us(self) -> float:
        """A row of the first step."""
        self._follow(int(self._known[0]))
        return self._step_us()

    def step_us(self) -> float:
        """A row of the next step."""
        self._known += 1
        return self._step_us()

    def _step_us(self) -> float:
        start = time.perf_counter_ns()
        self._proposer.propose(self._rows, self._token_ids, self._known, self._limits)
        return (time.perf_counter_ns() - start) / 1e3 / self._rows.size


def measure(
    method: str, kind: str, num_rows: int, num_tokens: int, num_drafts: int, num_steps: int
) -> dict[str, float]:
    """Microseconds a row."""
    steps = Steps(method, kind, num_rows, num_tokens, num_drafts, num_steps)
    prompt_us = steps.prompt_us()
    times = [steps.step_us() for _ in range(num_steps)]
    median, high = np.percentile(times, [50, 90]).tolist()
    return {"prompt_us": prompt_us, "step_p50_us": median, "step_p90_us": high}


def report(rows: list[int], tokens: list[int], num_drafts: int, num_steps: int, as_json: bool) -> None:
    if not as_json:
        print(describe_machine())
        print("us a row            tokens  " + "".join(f"{f'{n} rows':>16}" for n in rows) + "   prompt, most rows")
    for method in METHODS:
        for kind in _KINDS:
            for num_tokens in tokens:
                found = [measure(method, kind, n, num_tokens, num_drafts, num_steps) for n in rows]
                if as_json:
                    for num_rows, times in zip(rows, found, strict=True):
                        case = {"method": method, "kind": kind, "rows": num_rows, "tokens": num_tokens}
                        print(json.dumps(case | times))
                    continue
                cells = "".join(f"{times['step_p50_us']:9.1f} {times['step_p90_us']:6.1f}" for times in found)
                print(f"{method:8} {kind:8} {num_tokens:8,}  {cells}   {found[-1]['prompt_us']:9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1,16,64")
    parser.add_argument("--tokens", default="200,2000,8000")
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, tokens = ([int(word) for word in words.split(",")] for words in (options.rows, options.tokens))
    report(rows, tokens, options.drafts, options.steps, options.json)


if __name__ == "__main__":
    main()
