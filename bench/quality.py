"""What a dtype costs in quality: perplexity on a text, and how far the most likely tokens are those of the first dtype.

    python -m callboard.bench.quality [MODEL] [--dtypes float32,bfloat16,...] [--tokens N] [--window W]
        [--steps 1x512,16x1] [--prompts N] [--output N] [--threads N] [--text FILE] [--json]

The model is loaded as a worker loads it and computed by the worker's runner, in this process. The text is English prose
that every Python brings along (`pydoc_data.topics`, which differs a little between Python's versions), cut into windows
that know nothing of each other. Each dtype computes them in the shapes of steps named: whole windows as in a prefill,
and token by token as in decoding, where kernels and formats may be others. The first dtype in the first shape is what
the rest is compared with: same argmax is the share of places where the same token is the most likely one; the last
column is how many tokens of a greedy continuation are equal before the first difference, on average over the prompts.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import get_args

import msgspec

from ..checkpoints import resolve_checkpoint
from ..simulation.tables import aligned
from ..text import Tokenizer, load_tokenizer
from ..topology.describe import field_types
from ..topology.schema import ModelSection
from .machine import describe_machine
from .overlap import DEMO_MODEL
from .runner_here import RunnerHere, Tokens, launch_of
from .teacher_forcing import StepShape, equal_lengths, score, write_greedily

PROMPT_LEN = 64


class Options(msgspec.Struct, frozen=True):
    """Lengths in tokens."""

    dtypes: tuple[str, ...]
    """`DTYPE` or `DTYPE:ACTIVATION_BITS`."""
    num_tokens: int = 8192
    """Of the text."""
    window: int = 512
    steps: tuple[StepShape, ...] = (StepShape(1, 512), StepShape(16, 1))
    num_prompts: int = 16
    output_len: int = 128
    num_threads: int | None = None
    """None: the cores."""


class Line(msgspec.Struct, frozen=True):
    """One dtype in one shape of steps, against the first line."""

    dtype: str
    steps: str
    perplexity: float
    perplexity_change: float
    """Relative."""
    agreement: float
    """Share of the places with the same most likely token."""
    mean_equal_tokens: float
    """Of the greedy continuations, which do not depend on the shape."""
    num_equal_prompts: int
    """Whose continuations are equal to the end."""


def dtypes() -> tuple[str, ...]:
    """Those that a topology may name, `auto` apart; float32 first."""
    names = [name for name in get_args(field_types(ModelSection)["dtype"]) if name != "auto"]
    return tuple(sorted(names, key=lambda name: name != "float32"))


def prose() -> str:
    """Python's own help texts, in the order of their names."""
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def windows_of(tokenizer: Tokenizer, text: str, num_tokens: int, window: int) -> list[Tokens]:
    """The text's first tokens in windows; each begins as the tokenizer begins a text. The last may be shorter, but has
    two tokens at least."""
    head = tokenizer.encode("a", True)
    head = head[: len(head) - len(tokenizer.encode("a", False))]
    ids = tokenizer.encode(text, False)[:num_tokens]
    size = window - len(head)
    found = [[*head, *ids[begin : begin + size]] for begin in range(0, len(ids), size)]
    return [each for each in found if len(each) >= 2]


def measure(model: str, text: str, options: Options) -> Iterator[Line]:
    """A line for each dtype and shape of steps. Raises ConfigError."""
    checkpoint = resolve_checkpoint(model)
    windows = windows_of(load_tokenizer(checkpoint, has_chat_template=False), text, options.num_tokens, options.window)
    prompts = [list(window[:PROMPT_LEN]) for window in windows[: options.num_prompts]]
    num_rows = max(len(prompts), *(shape.num_rows for shape in options.steps))
    max_len = max(options.window, PROMPT_LEN + options.output_len)
    step_tokens = [shape.num_rows * shape.num_tokens for shape in options.steps]
    first = first_written = None
    for dtype in options.dtypes:
        name, _, bits = dtype.partition(":")
        runner = RunnerHere(
            launch_of(
                model,
                dtype=name,
                activation_bits=bits or None,
                num_rows=num_rows,
                max_len=max_len,
                max_step_tokens=max(*step_tokens, len(prompts) * PROMPT_LEN),
                num_threads=options.num_threads,
            )
        )
        written = write_greedily(runner, prompts, options.output_len)
        first_written = written if first_written is None else first_written
        equal = equal_lengths(written, first_written)
        for shape in options.steps:
            scores = score(runner, windows, shape)
            first = scores if first is None else first
            yield Line(
                dtype=dtype,
                steps=str(shape),
                perplexity=scores.perplexity,
                perplexity_change=scores.perplexity / first.perplexity - 1,
                agreement=scores.agreement(first),
                mean_equal_tokens=float(equal.mean()),
                num_equal_prompts=int((equal == options.output_len).sum()),
            )
        del runner  # the next model needs its memory


def table(lines: Sequence[Line], options: Options) -> list[str]:
    """For a person."""
    head = ["dtype", "rows x tokens a step", "perplexity", "change", "same argmax"]
    rows = [[*head, f"equal of {options.output_len} greedy tokens", "prompts all equal"]]
    rows += [
        [
            line.dtype,
            line.steps,
            f"{line.perplexity:.4f}",
            f"{line.perplexity_change:+.3%}",
            f"{line.agreement:.2%}",
            f"{line.mean_equal_tokens:.1f}",
            str(line.num_equal_prompts),
        ]
        for line in lines
    ]
    return aligned(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument(
        "--dtypes",
        default=",".join(dtypes()),
        help=f"of {', '.join(dtypes())}, or int4:15 for other activation_bits; the first is compared with",
    )
    parser.add_argument("--tokens", type=int, default=8192, help="of the text")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--steps", default="1x512,16x1", help="rows x tokens of each, a step")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--output", type=int, default=128, help="tokens of a greedy continuation")
    parser.add_argument("--threads", type=int, help="compute threads; default: the cores")
    parser.add_argument("--text", type=Path, help="another text, UTF-8")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    options = Options(
        dtypes=tuple(args.dtypes.split(",")),
        num_tokens=args.tokens,
        window=args.window,
        steps=tuple(StepShape.parse(text) for text in args.steps.split(",")),
        num_prompts=args.prompts,
        output_len=args.output,
        num_threads=args.threads,
    )
    text = prose() if args.text is None else args.text.read_text(encoding="utf-8")
    lines = list(measure(args.model, text, options))
    if args.json:
        print(msgspec.json.encode(lines).decode())
        return
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    name = "pydoc_data.topics" if args.text is None else str(args.text)
    print(describe_machine())
    print(f"{args.model}; {name} (sha256 {digest}), the first {args.tokens:,} tokens in windows of {args.window}")
    print("\n".join(table(lines, options)))


if __name__ == "__main__":
    main()
