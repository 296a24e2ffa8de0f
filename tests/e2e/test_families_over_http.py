"""Every family through a whole engine: greedy tokens are transformers' in float32, however the steps are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from callboard.bench.overlap import read_counter
from callboard.tests.e2e.conftest import Send
from callboard.tests.e2e.family_servers import BLOCK, BUDGET_16, CHUNK_16, FamilyServer, serve_family
from callboard.tests.models.families import CASES, WINDOW, is_greedy, make_prompt

NUM_TOKENS = 20
SHARED = make_prompt(0, 40)
PROMPTS = [make_prompt(seed, length) for seed, length in enumerate((3, WINDOW, WINDOW + 1, 40, 65))] + [
    SHARED + make_prompt(seed, 5) for seed in (7, 8)
]


def check_family(family: FamilyServer, send: Send) -> None:
    """All prompts at once, in a pool where they preempt each other; then a prompt whose blocks are cached."""

    def ask(*prompts: list[int]) -> dict[str, Any]:
        body = {"prompt": prompts, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
        reply = send(f"{family.server.url}/v1/completions", {**body, "return_token_ids": True})
        assert reply.status == 200, reply.text
        return reply.json

    expected = [choice["token_ids"] for choice in ask(*PROMPTS)["choices"]]
    assert [len(tokens) for tokens in expected] == [NUM_TOKENS] * len(PROMPTS)
    with torch.inference_mode():
        assert all(is_greedy(family.oracle, *pair) for pair in zip(PROMPTS, expected, strict=True))
    assert read_counter(family.server.url, "callboard:num_preemptions_total") > 0
    for prompt, tokens in zip(PROMPTS[-3:], expected[-3:], strict=True):
        first, again = ask(prompt), ask(prompt)
        assert first["choices"][0]["token_ids"] == again["choices"][0]["token_ids"] == tokens
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == (len(prompt) - 1) // BLOCK * BLOCK


@pytest.mark.slow
def test_gemma3_in_chunks_of_16(gemma3: FamilyServer, send: Send) -> None:
    check_family(gemma3, send)


@pytest.mark.nightly
def test_qwen2_with_windows_in_steps_of_16(tmp_path: Path, send: Send) -> None:
    with serve_family("qwen2-window", tmp_path, *BUDGET_16) as family:
        check_family(family, send)


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [BUDGET_16, CHUNK_16], ids=["steps of 16", "chunks of 16"])
@pytest.mark.parametrize("name", CASES)
def test_every_family(name: str, settings: tuple[str, ...], tmp_path: Path, send: Send) -> None:
    with serve_family(name, tmp_path, *settings) as family:
        check_family(family, send)
