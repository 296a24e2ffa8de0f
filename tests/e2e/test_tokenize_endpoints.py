"""/tokenize and /detokenize of a running server, against the tokenizers package and against what generating counts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers

from callboard.bench.server_process import ServerProcess
from callboard.tests.e2e.conftest import Send
from callboard.tests.e2e.null_engine import null_server

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "system", "content": "be short"}, {"role": "user", "content": "say wörld"}]


@pytest.fixture(scope="module")
def server(null_model: Path) -> Iterator[ServerProcess]:
    with null_server(null_model, "model.max_model_len=64") as server:
        yield server


@pytest.fixture(scope="module")
def reference(null_model: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(null_model / "tokenizer.json"))


def test_texts(server: ServerProcess, send: Send, reference: tokenizers.Tokenizer) -> None:
    """Longer ones than the model takes, too; and back."""
    draw = random.Random(7)
    for text in ("", "a", "hello wörld 😀", "<eos>", *("".join(draw.choices("ab é😀\n", k=k)) for k in (10, 500))):
        answer = send(f"{server.url}/tokenize", {"prompt": text, "return_token_strs": True}).json
        expected = reference.encode(text)
        assert answer == {
            "count": len(expected.ids),
            "max_model_len": 64,
            "tokens": expected.ids,
            "token_strs": expected.tokens,
        }
        back = send(f"{server.url}/detokenize", {"tokens": answer["tokens"]}).json
        assert back == {"prompt": text}


def test_random_ids(server: ServerProcess, send: Send, reference: tokenizers.Tokenizer) -> None:
    """Also such as spell no whole character; special ones stay."""
    draw, size = random.Random(8), reference.get_vocab_size()
    for length in (1, 5, 300):
        ids = draw.choices(range(size), k=length)
        text = send(f"{server.url}/detokenize", {"tokens": ids}).json["prompt"]
        assert text == reference.decode(ids, skip_special_tokens=False)
    refused = send(f"{server.url}/detokenize", {"tokens": [size]})
    assert refused.status == 400 and "out of vocabulary" in refused.error["message"]


def test_messages_are_counted_as_they_are_generated_from(
    server: ServerProcess, send: Send, reference: tokenizers.Tokenizer
) -> None:
    body = {"messages": MESSAGES, "max_tokens": 1, "return_token_ids": True}
    counted = send(f"{server.url}/v1/tokenize", body)
    assert counted.headers["x-ignored-fields"] == "max_tokens, return_token_ids"
    rendered = "".join(f"{message['role']}: {message['content']}\n" for message in MESSAGES)
    assert counted.json["tokens"] == reference.encode(rendered).ids
    generated = send(f"{server.url}/v1/chat/completions", body).json
    assert generated["prompt_token_ids"] == counted.json["tokens"]
    assert generated["usage"]["prompt_tokens"] == counted.json["count"]
