"""24 prompts through HTTP against an independent implementation's greedy tokens in float32, one factor at a time."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from callboard.bench.overlap import read_counter
from callboard.bench.reference import Reference, ask, compare, difference, load_references
from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
REFERENCES = load_references(ROOT / "tests" / "data" / "smollm2_reference.jsonl")
SMALL_POOL = ("kv_cache.num_blocks=108", "model.max_model_len=1680")
"""Room for the longest prompt and little more: 24 requests at once cannot all stay."""


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def serve(gguf: Path, *pairs: str, topology: str | None = None) -> ServerProcess:
    args = ["--topology", str(ROOT / "examples" / topology)] if topology else []
    return ServerProcess(str(gguf), "--dtype", "float32", *args, *settings(*pairs))


def check(
    server: ServerProcess, references: Sequence[Reference] = REFERENCES, *, is_one_by_one: bool = False
) -> list[int]:
    """All prompts equal; returns their cached tokens."""
    differences, answers = asyncio.run(compare(server.url, references, is_one_by_one=is_one_by_one))
    assert differences == []
    return [answer.cached_tokens for answer in answers]


@pytest.fixture(scope="module")
def default_server(smollm2_gguf: Path) -> Iterator[ServerProcess]:
    with serve(smollm2_gguf) as server:
        yield server


def test_all_at_once_cold_then_one_by_one_with_the_prefix_cache_warm(default_server: ServerProcess) -> None:
    """Every sixth of them one by one; `test_full_product` has them all."""
    check(default_server)
    again = REFERENCES[::6]
    cached = check(default_server, again, is_one_by_one=True)
    assert cached == [(len(r.prompt_ids) - 1) // 16 * 16 for r in again], (
        "an exact repeat hits all but the last token's block"
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("first", "pairs"),
    [
        (0, ("scheduler.max_num_batched_tokens=64", "scheduler.pipeline_depth=3")),
        (1, ("scheduler.max_num_batched_tokens=2048", "scheduler.pipeline_depth=1")),
    ],
    ids=["chunks of 64, depth 3", "depth 1"],
)
def test_chunks_and_depths(smollm2_gguf: Path, first: int, pairs: tuple[str, ...]) -> None:
    """Corners, every third prompt in each; `test_full_product` has them all."""
    with serve(smollm2_gguf, *pairs, "kv_cache.prefix_caching=false") as server:
        check(server, REFERENCES[first::3])
        longest = max(REFERENCES, key=lambda reference: len(reference.prompt_ids))
        differences, (again,) = asyncio.run(compare(server.url, [longest]))
        assert (differences, again.cached_tokens) == ([], 0), "the same prompt again finds nothing"


@pytest.mark.nightly
def test_a_pool_so_small_that_requests_are_preempted(smollm2_gguf: Path) -> None:
    with serve(smollm2_gguf, *SMALL_POOL) as server:
        check(server)
        assert read_counter(server.url, "callboard:num_preemptions_total") > 0


@pytest.mark.nightly
def test_all_actors_apart(smollm2_gguf: Path) -> None:
    """Every third prompt."""
    with serve(smollm2_gguf, topology="all_apart.toml") as server:
        check(server, REFERENCES[1::3])


@pytest.mark.nightly
def test_the_worker_killed_in_the_middle(smollm2_gguf: Path) -> None:
    """SIGKILL when half of all tokens have come: the same connections go on, with the same tokens."""
    with serve(smollm2_gguf) as server:
        assert run_with_a_kill(server, REFERENCES[::3]) == []
        assert "process.died process=worker" in server.log()


def run_with_a_kill(
    server: ServerProcess, references: Sequence[Reference] = REFERENCES, process: str = "worker"
) -> list[str]:
    async def kill_at_half() -> None:
        half = sum(len(r.output_ids) for r in references) / 2
        start = await asyncio.to_thread(read_counter, server.url, "callboard:generation_tokens_total")
        while await asyncio.to_thread(read_counter, server.url, "callboard:generation_tokens_total") < start + half:
            await asyncio.sleep(0.02)  # between two looks at the counter, so as not to starve the engine
        os.kill(server.pid_of(process), signal.SIGKILL)

    async def both() -> list[str]:
        killer = asyncio.create_task(kill_at_half())
        differences, _ = await compare(server.url, references)
        await killer
        return differences

    return asyncio.run(both())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("chunk", "depth", "is_small", "topology", "is_cached"),
    list(
        itertools.product(
            (64, 2048), (1, 2, 3), (False, True), ("one_process.toml", "control_worker.toml"), (False, True)
        )
    ),
)
def test_full_product(
    smollm2_gguf: Path, chunk: int, depth: int, is_small: bool, topology: str, is_cached: bool
) -> None:
    pairs = [
        f"scheduler.max_num_batched_tokens={chunk}",
        f"scheduler.pipeline_depth={depth}",
        f"kv_cache.prefix_caching={'true' if is_cached else 'false'}",
        *(SMALL_POOL if is_small else ()),
    ]
    with serve(smollm2_gguf, *pairs, topology=topology) as server:
        check(server)  # cold
        check(server)  # warm where there is a cache
        if is_small:
            assert read_counter(server.url, "callboard:num_preemptions_total") > 0
        check(server, is_one_by_one=True)
        if topology == "control_worker.toml":
            assert run_with_a_kill(server) == []


def test_the_comparison_sees_a_wrong_token(default_server: ServerProcess) -> None:
    """The check itself can fail: a reference with one certain token changed is reported with its position."""
    import aiohttp
    import msgspec

    async def answer(reference: Reference) -> str | None:
        async with aiohttp.ClientSession() as session:
            return difference(planted, await ask(session, default_server.url, reference))

    reference = REFERENCES[0]
    wrong = [*reference.output_ids]
    wrong[3] += 1
    planted = msgspec.structs.replace(reference, output_ids=wrong)
    assert "position 3" in (asyncio.run(answer(reference)) or "")
