"""Tokenizers of both formats, against the reference prompts and the `tokenizers` package itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from callboard.checkpoints import Checkpoint, resolve_checkpoint
from callboard.errors import CorruptCheckpoint, InvalidRequest, UnsupportedModel
from callboard.mailbox.messages.requests import ChatMessage
from callboard.text import Detokenizer, Tokenizer, load_tokenizer
from callboard.text.length import keeps_length
from callboard.text.pre_tokenizers import SPLIT_RULES, split_pre_tokenizer

REFERENCE = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "smollm2_reference.jsonl").read_text().splitlines()
]
Write = Callable[..., Checkpoint]
no_deadline = settings(deadline=None)
_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_SINGLE_DIGITS = [pre_tokenizers.Digits(individual_digits=True), _GPT2]
_THREE_DIGITS = pre_tokenizers.Split(tokenizers.Regex("[0-9][0-9][0-9]"), behavior="isolated")
EQUIVALENTS = {
    "starcoder": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "olmo": [_GPT2],
    "falcon": [pre_tokenizers.Punctuation(behavior="contiguous"), _GPT2, _THREE_DIGITS],
}
"""tokenizer.ggml.pre -> the steps as such models' tokenizer.json has them."""


# -- the demo model ---------------------------------------------------------------------------------------------------


def test_there_are_24_reference_prompts() -> None:
    assert len(REFERENCE) == 24


@pytest.mark.parametrize("case", [case for case in REFERENCE if case["kind"] != "ids"], ids=lambda case: case["name"])
def test_reference_prompts_encode_exactly(smollm2: Tokenizer, case: dict[str, object]) -> None:
    if case["kind"] == "chat":
        assert smollm2.chat_template is not None
        messages = [ChatMessage(**message) for message in case["source"]]
        assert smollm2.encode(smollm2.chat_template.render(messages), False) == case["prompt_ids"]
    else:
        assert smollm2.encode(case["source"], True) == case["prompt_ids"]


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: case["name"])
def test_reference_outputs_decode_exactly(smollm2: Tokenizer, case: dict[str, object]) -> None:
    assert smollm2.decode(case["output_ids"], skip_special_tokens=False) == case["output_text"]
    if case["eos_at"] is not None:
        assert smollm2.decode(case["output_ids"][: case["eos_at"]]) == case["text_to_eos"]
    detokenizer = Detokenizer(smollm2, skip_special_tokens=False)
    streamed = [detokenizer.push([token_id]) for token_id in case["output_ids"]]
    assert "".join(streamed) + detokenizer.finish() == case["output_text"]


@given(text=st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from([c * 5000 for c in " #\n"]))
@no_deadline
def test_the_fewest_tokens_are_not_more_than_there_are(smollm2: Tokenizer, sentencepiece: Tokenizer, text: str) -> None:
    for tokenizer in (smollm2, sentencepiece):
        assert tokenizer.fewest_tokens(text) <= len(tokenizer.encode(text, False))


@pytest.mark.parametrize(
    "normalizer",
    [normalizers.Strip(), normalizers.NFC(), normalizers.Replace("  ", " "), normalizers.Replace(Regex(" +"), "_")],
)
def test_where_a_text_may_become_shorter_its_length_says_nothing(
    sentencepiece_backend: tokenizers.Tokenizer, normalizer: normalizers.Normalizer
) -> None:
    backend = tokenizers.Tokenizer.from_str(sentencepiece_backend.to_str())
    assert keeps_length(backend, False)
    backend.normalizer = normalizers.Sequence([backend.normalizer, normalizer])
    assert not keeps_length(backend, False)
    backend.normalizer, backend.pre_tokenizer = None, pre_tokenizers.Split(" ", "removed")
    assert not keeps_length(backend, False)
    backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    assert keeps_length(backend, False)


def test_the_fewest_tokens_of_a_long_text_come_from_the_longest_token(smollm2: Tokenizer) -> None:
    longest = max(len(smollm2.token_bytes(token_id)) for token_id in range(smollm2.vocab_size))
    assert smollm2.fewest_tokens("a" * 10 * longest) == 10


def test_other_threads_run_while_a_long_text_is_encoded(smollm2: Tokenizer) -> None:
    started = threading.Event()
    done = threading.Event()

    def encode() -> None:
        started.set()
        smollm2.encode("ab " * 300_000, True)
        done.set()

    with ThreadPoolExecutor(1) as threads:
        encoding = threads.submit(encode)
        started.wait()
        num_turns = 0
        while not done.is_set():
            time.sleep(0.001)
            num_turns += 1
        encoding.result()
    assert num_turns > 20


def test_facts_of_the_demo_model(smollm2: Tokenizer) -> None:
    assert (smollm2.vocab_size, smollm2.bos_token_id, smollm2.eos_token_ids) == (49_152, 1, (2,))
    assert [smollm2.token_text(token_id) for token_id in (0, 1, 2)] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert smollm2.is_special(16)
    assert not smollm2.is_special(17)


def test_digits_are_split_one_by_one(smollm2: Tokenizer) -> None:
    assert [smollm2.token_text(token_id) for token_id in smollm2.encode("in 1234", False)] == ["in", " ", *"1234"]


def test_bytes_without_a_token_are_left_out(smollm2: Tokenizer) -> None:
    """The demo model lacks 21 byte symbols, of which valid UTF-8 can have 04 06 13 14 16 F1."""
    assert smollm2.decode(smollm2.encode("a\x04b\x13\U00040000c", False)).startswith("ab")
    assert (
        len({smollm2.token_bytes(token_id) for token_id in range(49_152)} & {bytes([byte]) for byte in range(256)})
        == 235
    )


# -- bytes and texts of tokens ----------------------------------------------------------------------------------------


@no_deadline
@given(st.data())
def test_decode_is_that_of_the_tokenizers_package(
    byte_level: Tokenizer, byte_level_backend: tokenizers.Tokenizer, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, byte_level.vocab_size - 1), max_size=40))
    for skipped in (True, False):
        assert byte_level.decode(ids, skipped) == byte_level_backend.decode(ids, skip_special_tokens=skipped)


@no_deadline
@given(st.text())
def test_text_survives_encoding(byte_level: Tokenizer, text: str) -> None:
    ids = byte_level.encode(text, False)
    assert byte_level.decode(ids, skip_special_tokens=False) == text
    assert b"".join(byte_level.token_bytes(token_id) for token_id in ids) == text.encode()


def test_special_tokens(byte_level: Tokenizer) -> None:
    assert [byte_level.token_bytes(token_id) for token_id in range(3)] == [b"<|begin|>", b"<|end|>", b"<|im start|>"]
    assert byte_level.encode("a<|end|>b", False) == [*byte_level.encode("a", False), 1, *byte_level.encode("b", False)]
    assert byte_level.encode("a", True) == [0, *byte_level.encode("a", False)]
    assert byte_level.decode([0, *byte_level.encode("a", False), 1]) == "a"
    assert (byte_level.bos_token_id, byte_level.eos_token_ids) == (0, (1,))


def test_ids_outside_of_the_vocabulary_have_no_text(byte_level: Tokenizer) -> None:
    beyond = [-1, byte_level.vocab_size, 2**40]
    assert byte_level.decode(beyond) == ""
    assert [byte_level.token_bytes(token_id) for token_id in beyond] == [b"", b"", b""]
    assert not any(byte_level.is_special(token_id) for token_id in beyond)


def test_tokens_of_a_sentencepiece_vocabulary(sentencepiece: Tokenizer) -> None:
    ids = sentencepiece.encode("the fox €", False)
    assert [sentencepiece.token_bytes(token_id) for token_id in ids][-3:] == [b"\xe2", b"\x82", b"\xac"]
    assert b"".join(sentencepiece.token_bytes(token_id) for token_id in ids) == " the fox €".encode()
    assert sentencepiece.decode(ids) == "the fox €"
    assert sentencepiece.token_text(ids[-1]) == "\ufffd"


def test_lone_surrogates_are_the_requests_fault(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate at character 2"):
        byte_level.encode("ab\ud800", True)


def test_encode_from_many_threads(byte_level: Tokenizer) -> None:
    texts = [f"the {number} foxes, naïve 日本 {number * 7}" * 20 for number in range(64)]
    expected = [byte_level.encode(text, True) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: byte_level.encode(text, True), texts)) == expected


# -- from a directory -------------------------------------------------------------------------------------------------


def test_truncation_and_padding_of_the_file_are_off(
    byte_level_backend: tokenizers.Tokenizer, write_tokenizer: Write
) -> None:
    backend = tokenizers.Tokenizer.from_str(byte_level_backend.to_str())
    backend.enable_truncation(4)
    backend.enable_padding(length=50)
    loaded = load_tokenizer(write_tokenizer(backend))
    text = "the quick brown fox jumps over"
    assert loaded.encode(text, False) == byte_level_backend.encode(text, add_special_tokens=False).ids


def test_end_ids_come_from_all_files(byte_level_backend: tokenizers.Tokenizer, write_tokenizer: Write) -> None:
    checkpoint = write_tokenizer(
        byte_level_backend,
        {"eos_token": {"content": "<|end|>"}},
        {"generation_config.json": '{"eos_token_id": [2, 7]}'},
        {"eos_token_id": 7},
    )
    assert load_tokenizer(checkpoint).eos_token_ids == (7, 2, 1)


def test_tokens_that_only_the_config_has_are_added(
    byte_level_backend: tokenizers.Tokenizer, write_tokenizer: Write
) -> None:
    size = byte_level_backend.get_vocab_size()
    added = {str(size): {"content": "<|tool|>", "special": True}}
    loaded = load_tokenizer(
        write_tokenizer(byte_level_backend, {"added_tokens_decoder": added, "pad_token": "<|pad|>"})
    )
    assert loaded.encode("<|tool|><|pad|>", False) == [size, size + 1]
    assert loaded.is_special(size)
    assert loaded.is_special(size + 1)


@pytest.mark.slow
def test_transformers_encodes_and_decodes_the_same(
    byte_level_backend: tokenizers.Tokenizer, sentencepiece_backend: tokenizers.Tokenizer, write_tokenizer: Write
) -> None:
    transformers = pytest.importorskip("transformers")
    for backend in (byte_level_backend, sentencepiece_backend):
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        checkpoint = write_tokenizer(backend, config)
        oracle = transformers.PreTrainedTokenizerFast.from_pretrained(checkpoint.path)
        ours = load_tokenizer(checkpoint)
        for text in ["", " ", "The quick brown fox", "  two  spaces ", "1234 日本 😀", "a<|end|>b</s>c"]:
            for adds in (True, False):
                ids = oracle.encode(text, add_special_tokens=adds)
                assert ours.encode(text, adds) == ids
                for skipped in (True, False):
                    assert ours.decode(ids, skipped) == oracle.decode(ids, skip_special_tokens=skipped)


def test_what_cannot_be_loaded_says_why(
    byte_level_backend: tokenizers.Tokenizer, write_tokenizer: Write, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedModel, match=r"holds no tokenizer\.json and no tokenizer\.model"):
        load_tokenizer(Checkpoint("x", "safetensors", str(tmp_path), "x"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        with pytest.raises(CorruptCheckpoint, match=rf"{name} is malformed"):
            load_tokenizer(write_tokenizer(byte_level_backend, files={name: "{"}))
    wordpiece = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0}))
    wordpiece.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="decoder WordPiece"):
        load_tokenizer(write_tokenizer(wordpiece))
    with pytest.raises(UnsupportedModel, match="no decoder"):
        load_tokenizer(write_tokenizer(tokenizers.Tokenizer(models.BPE())))


# -- from GGUF metadata -----------------------------------------------------------------------------------------------


@no_deadline
@given(text=st.text() | st.text(alphabet="ab 1\n'st.é日<|end|>"))
def test_gpt2_rule_encodes_as_the_tokenizer_that_it_was_written_from(
    byte_level_backend: tokenizers.Tokenizer, gpt2_twin: Tokenizer, text: str
) -> None:
    assert gpt2_twin.encode(text, False) == byte_level_backend.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="session")
def gpt2_twin(write_gguf_tokenizer: Write) -> Tokenizer:
    return load_tokenizer(write_gguf_tokenizer())


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "x 12345 it's", ["x", " 12345", " it", "'s"]),
        ("smollm", "x 123 it's", ["x", " ", "1", "2", "3", " it", "'s"]),
        ("llama-bpe", "x 12345 IT'S\n\n", ["x", " ", "123", "45", " IT", "'S", "\n\n"]),
        ("qwen2", "x 123 IT'S\n\n", ["x", " ", "1", "2", "3", " IT", "'S", "\n\n"]),
        ("stablelm2", "x 123 IT'S", ["x", " ", "1", "2", "3", " IT", "'S"]),
        ("dbrx", "x 12345 IT'S", ["x", " ", "123", "45", " IT", "'S"]),
        ("gpt-4o", "HTTPServer's 12345 a/\n", ["HTTPServer's", " ", "123", "45", " a", "/\n"]),
        ("llama4", "camelCase don'T", ["camel", "Case", " don'T"]),
        ("tekken", "camelCase's 123", ["camel", "Case", "'s", " ", "1", "2", "3"]),
        ("default", "x+=12345 it's", ["x", "+=", "123", "45", " it", "'", "s"]),
        ("falcon", "x+=12345 it's `a` 12", ["x", "+=", "123", "45", " it", "'", "s", " ", "`", "a", "`", " 12"]),
        ("starcoder", "x 123 it's", ["x", " ", "1", "2", "3", " it", "'s"]),
        ("refact", "x 12", ["x", " ", "1", "2"]),
        ("command-r", "x 12", ["x", " ", "1", "2"]),
        ("olmo", "x 123 it's", ["x", " 123", " it", "'s"]),
        ("phi-2", "x 123  it's", ["x", " 123", " ", " it", "'s"]),
        ("deepseek-llm", "x\n 12345 ab, cd", ["x", "\n", " ", "12345", " ab", ",", " cd"]),
        ("deepseek-coder", "x\n 12 ab, cd", ["x", "\n", " ", "1", "2", " ab", ",", " cd"]),
        ("deepseek-v3", "x\n\n 12345 .ab日本, cd", ["x", "\n\n", " ", "123", "45", " .", "ab", "日本", ",", " cd"]),
        ("qwen35", "e\u0301x 12", ["éx", " ", "1", "2"]),
    ],
)
def test_each_rule_splits_text_its_way(write_gguf_tokenizer: Write, pre: str, text: str, pieces: list[str]) -> None:
    """The pieces are those of the rule's published regular expression, worked out by hand."""
    backend = load_tokenizer(write_gguf_tokenizer(pre))._backend
    normal = text if backend.normalizer is None else backend.normalizer.normalize_str(text)
    split = backend.pre_tokenizer.pre_tokenize_str(normal)
    assert [backend.decoder.decode([piece]) for piece, _ in split] == pieces


@no_deadline
@given(text=st.text() | st.text(alphabet="aB1\u00b2\u0661 \n\t'.,!`$\u00e9\u65e5\u0301"))
@pytest.mark.parametrize(("pre", "steps"), EQUIVALENTS.items())
def test_rules_equal_the_steps_that_models_files_have(
    pre: str, steps: list[pre_tokenizers.PreTokenizer], text: str
) -> None:
    """Families whose tokenizer.json says it otherwise than with expressions."""
    assert split_pre_tokenizer(SPLIT_RULES[pre]).pre_tokenize_str(text) == pre_tokenizers.Sequence(
        steps
    ).pre_tokenize_str(text)


@pytest.mark.parametrize(
    ("pre", "begin", "end", "around"),
    [
        ("gpt-2", None, None, ([], [])),
        ("gpt-2", True, None, ([0], [])),
        ("gpt-2", True, True, ([0], [1])),
        ("gpt-2", None, True, ([], [1])),
        ("llama-bpe", None, None, ([0], [])),
        ("llama-bpe", False, None, ([], [])),
        ("tekken", None, None, ([0], [])),
        ("qwen2", None, None, ([], [])),
    ],
)
def test_begin_and_end_are_added_as_the_file_says(
    write_gguf_tokenizer: Write, pre: str, begin: bool | None, end: bool | None, around: tuple[list[int], list[int]]
) -> None:
    def extra(writer: object) -> None:
        if begin is not None:
            writer.add_add_bos_token(begin)
        if end is not None:
            writer.add_add_eos_token(end)

    loaded = load_tokenizer(write_gguf_tokenizer(pre, extra=extra))
    plain = loaded.encode("ab", False)
    assert loaded.encode("ab", True) == around[0] + plain + around[1]


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"pre": "superbpe"}, UnsupportedModel, "'superbpe'"),
        ({"pre": None}, UnsupportedModel, r"tokenizer\.ggml\.pre is missing"),
        ({"model": "t5"}, UnsupportedModel, r"tokenizer\.ggml\.model 't5'"),
        ({"model": "llama"}, CorruptCheckpoint, r"no tokenizer\.ggml\.scores"),
        ({"merges": ["nospace"]}, CorruptCheckpoint, "'nospace'"),
        ({"merges": ["qq zz"]}, CorruptCheckpoint, "do not fit"),
        ({"kinds": [1, 1]}, CorruptCheckpoint, "2 entries in token_type"),
    ],
)
def test_a_gguf_tokenizer_that_cannot_be_built_says_why(
    write_gguf_tokenizer: Write, options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        load_tokenizer(write_gguf_tokenizer(**options))


def test_user_defined_tokens_are_found_in_text_and_shown(write_gguf_tokenizer: Write) -> None:
    loaded = load_tokenizer(write_gguf_tokenizer(kinds=[3, 4, 3] + [1] * 417))
    assert loaded.vocab_size == 420
    assert 1 in loaded.encode("a<|end|>b", False)
    assert not loaded.is_special(1)
    assert loaded.decode([0, 1, 2]) == "<|end|>"


def test_without_a_chat_template_nothing_is_started_that_would_render_it(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the process of templates was asked for")

    for name in ("start", "ask"):
        monkeypatch.setattr(f"callboard.text.render_process.RenderProcess.{name}", refuse)
    tokenizer = load_tokenizer(resolve_checkpoint(str(smollm2_gguf)), has_chat_template=False)
    assert tokenizer.decode(tokenizer.encode("plain text", False)) == "plain text"
    assert tokenizer.chat_template is None
