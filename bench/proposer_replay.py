"""How many drafts would be accepted: texts are replayed as if a model had put them out, each token once it is known.

    python -m callboard.bench.proposer_replay [MODEL] [--drafts 8] [--texts 24] [--option NAME=VALUE ...] [--json]

Three kinds of text, from this repository and by MODEL's tokenizer: "rewrite" is a file's latest version behind the one
before it as prompt (it needs the history); "code" and "prose" are files behind their own first 100 tokens, so that they
repeat only themselves and, for suffix decoding, the texts before. Prints, for each method, tokens a step (1 without
drafts), the share of drafts that is accepted, and drafts a step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from ..checkpoints import resolve_checkpoint
from ..speculative.make_proposer import METHODS, make_proposer
from ..speculative.proposer import Proposer
from ..text import load_tokenizer
from .overlap import DEMO_MODEL

_ROOT = Path(__file__).parents[1]
_GIVEN, _MOST = 100, 1_500
"""Tokens of a file's prompt and of its text."""
_MAX_MODEL_LEN = 8_192


class Text(NamedTuple):
    prompt: list[int]
    output: list[int]


class Replayed(NamedTuple):
    tokens_per_step: float
    acceptance: float
    drafts_per_step: float


def replay(proposer: Proposer, texts: list[Text], max_drafts: int) -> Replayed:
    """One request after the other, all of one key. The first token of an output comes with its prompt's step."""
    row, known = np.zeros(1, np.int32), np.zeros(1, np.int32)
    token_ids = np.zeros((1, _MAX_MODEL_LEN + 1), np.int32)
    num_steps = num_tokens = num_drafts = num_accepted = 0
    for prompt, output in texts:
        text = np.array([*prompt, *output], np.int32)
        token_ids[0, : text.size] = text
        known[0] = len(prompt) + 1
        proposer.follow(0, len(prompt), "everybody")
        while known[0] < text.size:
            limit = np.array([min(max_drafts, text.size - known[0])], np.int32)
            drafts = proposer.propose(row, token_ids, known, limit).token_ids
            is_right = drafts == text[known[0] : known[0] + drafts.size]
            accepted = drafts.size if is_right.all() else int(is_right.argmin())
            num_steps, num_drafts, num_accepted = num_steps + 1, num_drafts + drafts.size, num_accepted + accepted
            num_tokens += accepted + 1
            known[0] += accepted + 1
        proposer.forget(row)
    return Replayed(num_tokens / num_steps, num_accepted / max(num_drafts, 1), num_drafts / num_steps)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True).stdout


def _spread(texts: list[Text], count: int) -> list[Text]:
    return texts[:: max(1, len(texts) // count)][:count]


def rewrites(encode: Callable[[str], list[int]], count: int) -> list[Text]:
    """Files that changed, of a few thousand tokens."""
    texts = []
    for name in _git("ls-files", "*.py", "*.md").split():
        commits = _git("log", "--format=%h", "-2", "--", name).split()
        if len(commits) < 2:
            continue
        new, old = (_git("show", f"{commit}:{name}") for commit in commits)
        text = Text(encode("Rewrite.\n" + old[:9_000]), encode(new[:5_000]))
        if old != new and 500 < len(text.prompt) < 3_500 and 300 < len(text.output) < 2_000:
            texts.append(text)
    return _spread(texts, count)


def files(encode: Callable[[str], list[int]], pattern: str, count: int) -> list[Text]:
    texts = []
    for name in _git("ls-files", pattern).split():
        tokens = encode((_ROOT / name).read_text()[:8_000])[:_MOST]
        if len(tokens) > 9 * _GIVEN:
            texts.append(Text(tokens[:_GIVEN], tokens[_GIVEN:]))
    return _spread(texts, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--option", action="append", default=[], help="of the methods that have it")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    tokenizer = load_tokenizer(resolve_checkpoint(options.model))

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, False))

    kinds = {
        "rewrite": rewrites(encode, options.texts),
        "code": files(encode, "*.py", options.texts),
        "prose": files(encode, "*.md", options.texts),
    }
    given = {
        name: msgspec.json.decode(value, type=float | int)
        for name, _, value in (word.partition("=") for word in options.option)
    }
    for method, known in METHODS.items():
        fields = {field.name for field in msgspec.structs.fields(known)}
        for kind, texts in kinds.items():
            own = {name: value for name, value in given.items() if name in fields}
            found = replay(make_proposer(method, own, 1, _MAX_MODEL_LEN), texts, options.drafts)
            if options.json:
                print(json.dumps({"method": method, "kind": kind, "texts": len(texts)} | found._asdict()))
            else:
                print(
                    f"{method:8} {kind:8} {len(texts):3} texts {found.tokens_per_step:7.3f} tokens a step"
                    f" {100 * found.acceptance:6.1f} % accepted {found.drafts_per_step:6.2f} drafts a step"
                )


if __name__ == "__main__":
    main()
