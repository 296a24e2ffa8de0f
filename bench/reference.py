"""Greedy tokens of a server against a file of reference outputs made by an independent implementation.

    python -m callboard.bench.reference URL FILE [--one-by-one]

A position may differ only from one on whose listed top-2 logit gap is under the tolerance: there two correct
implementations in float32 may part, and everything after it follows from that token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import msgspec

GAP_TOLERANCE = 0.02


class Reference(msgspec.Struct, frozen=True):
    """One prompt of the file, and what the reference implementation made of it."""

    name: str
    kind: str
    """chat, text, or ids"""
    source: str | list[dict[str, str]] | None
    prompt_ids: list[int]
    output_ids: list[int]
    top2_gaps: list[float]

    @property
    def num_certain(self) -> int:
        """Output tokens before the first near-tie."""
        ties = (i for i, gap in enumerate(self.top2_gaps) if gap < GAP_TOLERANCE)
        return next(ties, len(self.output_ids))


class Answer(msgspec.Struct, frozen=True):
    """What the server gave."""

    prompt_ids: list[int]
    output_ids: list[int]
    finish_reason: str | None
    cached_tokens: int


def load_references(path: Path) -> list[Reference]:
    """One JSON object a line; further fields are ignored."""
    return [msgspec.json.decode(line, type=Reference) for line in path.read_text().splitlines() if line.strip()]


async def ask(session: aiohttp.ClientSession, url: str, reference: Reference) -> Answer:
    """Stream the prompt as the reference has it: chat messages, text, or token ids."""
    body: dict[str, object] = {
        "max_tokens": len(reference.output_ids),
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    if reference.kind == "chat":
        path, body["messages"] = "/v1/chat/completions", reference.source
    else:
        path, body["prompt"] = "/v1/completions", reference.prompt_ids if reference.source is None else reference.source
    prompt_ids: list[int] = []
    output_ids: list[int] = []
    finish_reason, cached_tokens = None, 0
    async with session.post(url + path, json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{reference.name}: HTTP {response.status}: {(await response.text())[:300]}")
        async for line in response.content:
            if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                raise RuntimeError(f"{reference.name}: {chunk['error']}")
            if chunk.get("prompt_token_ids"):
                prompt_ids = chunk["prompt_token_ids"]
            if chunk.get("usage"):
                cached_tokens = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
            for choice in chunk["choices"]:
                prompt_ids = choice.get("prompt_token_ids") or prompt_ids
                output_ids += choice.get("token_ids") or []
                finish_reason = choice["finish_reason"] or finish_reason
    return Answer(prompt_ids, output_ids, finish_reason, cached_tokens)


def difference(reference: Reference, answer: Answer) -> str | None:
    """A sentence about the first difference that no near-tie excuses; None if there is none."""
    if answer.prompt_ids != reference.prompt_ids:
        return f"{reference.name}: prompt ids differ: {answer.prompt_ids[:20]} != {reference.prompt_ids[:20]}"
    if answer.finish_reason != "length" or len(answer.output_ids) != len(reference.output_ids):
        return f"{reference.name}: {len(answer.output_ids)} tokens, finish_reason {answer.finish_reason!r}"
    for position in range(reference.num_certain):
        got, expected = answer.output_ids[position], reference.output_ids[position]
        if got != expected:
            return f"{reference.name}: position {position} (gap {reference.top2_gaps[position]}): {got} != {expected}"
    return None


async def compare(
    url: str, references: Sequence[Reference], *, is_one_by_one: bool = False
) -> tuple[list[str], list[Answer]]:
    """(differences, answers in the order of `references`)."""
    limit = asyncio.Semaphore(1 if is_one_by_one else len(references))
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def one(reference: Reference) -> Answer:
            async with limit:
                return await ask(session, url, reference)

        answers = await asyncio.gather(*(one(reference) for reference in references))
    found = [difference(reference, answer) for reference, answer in zip(references, answers, strict=True)]
    return [sentence for sentence in found if sentence], answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("file", type=Path)
    parser.add_argument("--one-by-one", action="store_true")
    args = parser.parse_args()
    references = load_references(args.file)
    differences, _ = asyncio.run(compare(args.url, references, is_one_by_one=args.one_by_one))
    certain = sum(reference.num_certain for reference in references)
    print(f"{len(references) - len(differences)} of {len(references)} prompts equal ({certain} positions compared)")
    sys.exit("\n".join(differences))


if __name__ == "__main__":
    main()
