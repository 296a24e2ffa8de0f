"""The whole engine on one GPU and on several: the same tokens in float32, and the death of a rank.

    python -m callboard.bench.gpu_ranks_engine MODEL [--ranks 2] [--references FILE] [--tokens 64]
        [--stream-tokens 4000] [--device cuda]

Prompts are those of FILE (as `bench.reference` takes them), else random ids; they are asked all at once, of
`serve --dtype float32` with one rank and with several. Then, with several, long streams run, the last rank is killed
with SIGKILL, and told is how long no token came, that all streams end, and that their tokens are what they were without
a death.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import time
from itertools import pairwise
from pathlib import Path

import aiohttp

from .reference import Reference, compare, load_references
from .server_process import ServerProcess

NUM_STREAMS = 16
_KILL_AFTER_S = 0.5
_OPTIONS = ("--dtype", "float32", "--set", "scheduler.max_num_seqs=32")


def make_references(num_tokens: int, vocab_size: int) -> list[Reference]:
    """Prompts of random ids, whose outputs are not known."""
    draw = random.Random(0)
    prompts = [[draw.randrange(1, vocab_size) for _ in range(draw.choice((5, 40, 200)))] for _ in range(24)]
    unknown, ties = [0] * num_tokens, [0.0] * num_tokens
    return [Reference(f"random {i}", "ids", None, ids, unknown, ties) for i, ids in enumerate(prompts)]


async def stream(
    session: aiohttp.ClientSession, url: str, index: int, num_tokens: int, times: list[float]
) -> list[int]:
    """Tokens of one long greedy stream; `times`: when each chunk came."""
    body = {
        "prompt": [index + 1] * 8,
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    tokens: list[int] = []
    async with session.post(f"{url}/v1/completions", json=body) as response:
        response.raise_for_status()
        async for line in response.content:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RuntimeError(chunk["error"])
                tokens += [token for choice in chunk["choices"] for token in choice.get("token_ids") or []]
                times.append(time.monotonic())
    return tokens


async def streams(url: str, num_tokens: int, kill: int | None) -> tuple[list[list[int]], float]:
    """(tokens of all streams, the longest time in which none came); kill: the pid of what is killed when the streams
    are well under way."""
    times: list[float] = []
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        running = [asyncio.create_task(stream(session, url, index, num_tokens, times)) for index in range(NUM_STREAMS)]
        if kill is not None:
            await asyncio.sleep(_KILL_AFTER_S)
            os.kill(kill, signal.SIGKILL)
        tokens = await asyncio.gather(*running)
    longest = max(later - earlier for earlier, later in pairwise(times))
    return tokens, longest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--references", type=Path)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--stream-tokens", type=int, default=4000)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    references = load_references(args.references) if args.references else make_references(args.tokens, 250)
    outputs = {}
    for num_ranks in (1, args.ranks):
        began = time.monotonic()
        options = () if num_ranks == 1 else ("--tensor-parallel", str(num_ranks))
        with ServerProcess(args.model, "--device", args.device, *_OPTIONS, *options) as server:
            print(f"{num_ranks} ranks: ready after {time.monotonic() - began:.1f} s", flush=True)
            differences, answers = asyncio.run(compare(server.url, references))
            outputs[num_ranks] = [answer.output_ids for answer in answers]
            if args.references:
                equal = len(references) - len(differences)
                print(f"  {equal} of {len(references)} prompts as the references", flush=True)
                print("".join(f"  {difference}\n" for difference in differences), end="", flush=True)
            if num_ranks > 1:
                same = sum(a == b for a, b in zip(outputs[1], outputs[num_ranks], strict=True))
                print(f"  {same} of {len(references)} prompts have the tokens of one rank", flush=True)
                tell_death(server, num_ranks, args.stream_tokens)


def tell_death(server: ServerProcess, num_ranks: int, num_tokens: int) -> None:
    """Kill the last rank in the middle of streams."""
    expected, longest = asyncio.run(streams(server.url, num_tokens, None))
    print(f"  {NUM_STREAMS} streams of {num_tokens} tokens, no death: longest pause {longest:.3f} s", flush=True)
    try:
        tokens, longest = asyncio.run(streams(server.url, num_tokens, server.pid_of(f"worker.{num_ranks - 1}")))
    except (RuntimeError, aiohttp.ClientError) as error:
        print(f"  the death of a rank: {type(error).__name__}: {error}\n{server.log()[-3000:]}", flush=True)
        return
    same = sum(a == b for a, b in zip(expected, tokens, strict=True))
    ended = sum(len(each) == num_tokens for each in tokens)
    print(
        f"  rank {num_ranks - 1} killed: no token for {longest:.2f} s, {ended} of {NUM_STREAMS} streams ended,"
        f" {same} with the same tokens",
        flush=True,
    )


if __name__ == "__main__":
    main()
