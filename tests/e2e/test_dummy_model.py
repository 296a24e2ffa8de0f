"""A model that is a config.json and nothing else, served."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from callboard.bench.server_process import ServerProcess

pytestmark = pytest.mark.nightly

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "vocab_size": 3000, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    "eos_token_id": 2999,
}  # fmt: skip


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def test_it_answers_the_same_after_a_restart(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    answers = []
    for _ in range(2):
        with ServerProcess(f"dummy:{tmp_path}") as server:
            url = server.url
            body = {"prompt": "Hello wörld", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
            completion = post(f"{url}/v1/completions", body)
            assert completion["usage"]["prompt_tokens"] == len("Hello wörld".encode())
            assert completion["usage"]["completion_tokens"] == 20
            chat = post(
                f"{url}/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
            )
            assert chat["choices"][0]["message"]["content"]
            answers.append(completion["choices"][0]["text"])
    assert answers[0] == answers[1] and answers[0].strip()
