"""Vocabularies, the backend, and answers made and read through masks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from callboard.checkpoints import resolve_checkpoint
from callboard.mailbox.messages.grammar import Constraint, JsonFormat, OutputFormat, ReasoningGate
from callboard.structured_output.backend import CompiledGrammar, Matcher
from callboard.structured_output.llguidance_backend import LLGuidanceBackend
from callboard.structured_output.vocabulary import Vocabulary, make_vocabulary
from callboard.text import load_tokenizer

ROOT = Path(__file__).resolve().parent.parent.parent
EOS = 256
OTHER_EOS = 257
MARK = 258
"""A special token, `<|mark|>`."""


@pytest.fixture(scope="session")
def byte_vocabulary() -> Vocabulary:
    """A token a byte, two that end an answer, a special one, two words, and rows of padding."""
    tokens = [bytes([byte]) for byte in range(256)]
    tokens += [b"<eos>", b"<eot>", b"<|mark|>", b"true", b"</think>", b"k>x", *[b""] * 20]
    return Vocabulary(tokens, [EOS, OTHER_EOS, MARK], [EOS, OTHER_EOS])


@pytest.fixture(scope="session")
def byte_backend(byte_vocabulary: Vocabulary) -> LLGuidanceBackend:
    return LLGuidanceBackend(byte_vocabulary)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_gguf: Path):
    return load_tokenizer(resolve_checkpoint(str(smollm2_gguf)), has_chat_template=False)


@pytest.fixture(scope="session")
def smollm2_vocabulary(smollm2_tokenizer) -> Vocabulary:
    return make_vocabulary(smollm2_tokenizer, smollm2_tokenizer.vocab_size)


@pytest.fixture(scope="session")
def smollm2_backend(smollm2_vocabulary: Vocabulary) -> LLGuidanceBackend:
    return LLGuidanceBackend(smollm2_vocabulary)


@pytest.fixture(scope="session")
def compile_bytes(byte_backend: LLGuidanceBackend) -> Callable[..., CompiledGrammar]:
    """For the byte vocabulary: a format, or a JSON schema as Python values."""

    def compiled(form: object, reasoning: ReasoningGate | None = None) -> CompiledGrammar:
        wanted = form if isinstance(form, OutputFormat) else JsonFormat(json.dumps(form))
        return byte_backend.compile(Constraint(wanted, reasoning))

    return compiled


@pytest.fixture(scope="session")
def allows() -> Callable[[CompiledGrammar, str | bytes], bool]:
    """Whether the masks of the byte vocabulary let a text through, byte by byte, and let it end."""

    def allowed(grammar: CompiledGrammar, text: str | bytes) -> bool:
        matcher = grammar.matcher()
        data = list(text.encode() if isinstance(text, str) else text)
        return matcher.accept(data) == len(data) and matcher.may_end

    return allowed


@pytest.fixture(scope="session")
def mask_of() -> Callable[[Matcher, Vocabulary], set[int]]:
    def ids(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
        mask = np.full(vocabulary.num_mask_words, -1, np.int32)
        matcher.fill(mask)
        return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())

    return ids


@pytest.fixture(scope="session")
def finished_answer(byte_vocabulary: Vocabulary, mask_of) -> Callable[[CompiledGrammar, int], bytes | None]:
    """A random text that the masks allow; None if it did not come to its end. At first any token, then what closes."""

    def answer(grammar: CompiledGrammar, seed: int) -> bytes | None:
        choice = np.random.Generator(np.random.PCG64(seed))
        matcher = grammar.matcher()
        text = b""
        num_free = int(choice.integers(0, 40))
        for step in range(600):
            allowed = mask_of(matcher, byte_vocabulary)
            assert allowed, f"a dead end behind {text!r}"
            if allowed & {EOS, OTHER_EOS} and (step >= num_free or choice.random() < 0.1 or matcher.is_complete):
                assert matcher.may_end
                return text
            printable = sorted(i for i in allowed if 32 <= i < 127) or sorted(allowed - {EOS, OTHER_EOS})
            closing = [i for i in map(ord, '"}]') if i in allowed and (i == ord('"') or choice.random() < 0.5)]
            wanted = [i for i in b"abcx12" if i in allowed] if step >= num_free else []
            token_id = closing[0] if closing and step >= num_free else int(choice.choice(wanted or printable))
            assert matcher.accept([token_id]) == 1
            text += byte_vocabulary.tokens[token_id]
        return None

    return answer


def records(path: Path) -> Iterator[dict]:
    yield from map(json.loads, path.read_text(encoding="utf-8").rstrip("\n").split("\n"))


@pytest.fixture(scope="session")
def own_schema_cases() -> list[dict]:
    """Own work, CC0: the `license` of each record says so."""
    return list(records(ROOT / "tests" / "data" / "jsonschema" / "own.jsonl"))


@pytest.fixture(scope="session")
def all_schema_cases() -> list[dict]:
    path = ROOT.parent / "shared" / "cases" / "jsonschema_dev.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return list(records(path))
