"""SentencePiece vocabularies, of GGUF metadata and of tokenizer.model, against the algorithm written out plainly."""

from __future__ import annotations

import functools
import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.checkpoints import Checkpoint
from callboard.errors import CorruptCheckpoint, UnsupportedModel
from callboard.text import Tokenizer, load_tokenizer

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"
WORDS = [
    "ab", "ba", "aba", SPACE + "a", SPACE * 2, SPACE * 3, SPACE * 4, SPACE * 8, "abab", SPACE + "ab", "b" + SPACE, "cc",
    "ccc", "cccc", "\u65e5\u672c", "1" + SPACE, "\n" + "a", "a" + "\n",
]  # fmt: skip
LETTERS = [SPACE, "a", "b", "c", "1", "\u65e5", "\u672c", "\n"]
MARKED = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), ("<end_of_turn>", CONTROL), ("[IMG]", USER)]
Rows = list[tuple[str, float, int]]


@functools.cache
def rows() -> Rows:
    """(piece, score, kind) by id: marked pieces, bytes, words with the scores 0, -1, ..., then letters."""
    words = [(word, -float(rank), NORMAL) for rank, word in enumerate([*WORDS, *LETTERS])]
    return [*((piece, 0.0, kind) for piece, kind in MARKED), *((f"<0x{b:02X}>", 0.0, BYTE) for b in range(256)), *words]


@functools.cache
def tables() -> tuple[dict[str, int], dict[str, float]]:
    """(piece -> id, normal piece -> score)"""
    ids = {piece: token_id for token_id, (piece, _, _) in enumerate(rows())}
    return ids, {piece: score for piece, score, kind in rows() if kind == NORMAL}


def twin(text: str, adds_space: bool) -> list[int]:
    """Kudo and Richardson's BPE on one text without marked pieces: the pair with the best score first, leftmost."""
    ids, scores = tables()
    symbols = list(((SPACE if adds_space and text else "") + text).replace(" ", SPACE))
    while True:
        pairs = [(-scores[a + b], at) for at, (a, b) in enumerate(itertools.pairwise(symbols)) if a + b in scores]
        if not pairs:
            break
        _, at = min(pairs)
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
    found = []
    for symbol in symbols:
        found += [ids[symbol]] if symbol in scores else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


def write_gguf(path: Path, table: Rows, **flags: bool) -> Checkpoint:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([piece for piece, _, _ in table])
    writer.add_token_scores([score for _, score, _ in table])
    writer.add_token_types([kind for _, _, kind in table])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return Checkpoint(str(path), "gguf", str(path), "x")


def field(number: int, value: bytes | int | float) -> bytes:
    """One field of a protocol buffer message; lengths here are below 2**14."""
    if isinstance(value, bytes):
        size = bytes([len(value)]) if len(value) < 128 else bytes([len(value) & 127 | 128, len(value) >> 7])
        return bytes([number << 3 | 2]) + size + value
    return (
        bytes([number << 3 | 5]) + struct.pack("<f", value) if isinstance(value, float) else bytes([number << 3, value])
    )


def model_bytes(table: Rows, kind: int = 2, adds_space: bool = True, charsmap: bytes = b"") -> bytes:
    """A tokenizer.model: pieces, then trainer_spec (model_type), then normalizer_spec."""
    pieces = [field(1, field(1, p.encode()) + field(2, score) + field(3, piece)) for p, score, piece in table]
    normalizer = (field(2, charsmap) if charsmap else b"") + field(3, int(adds_space)) + field(4, 0)
    return b"".join([*pieces, field(2, field(3, kind)), field(3, normalizer)])


def write_directory(folder: Path, model: bytes, **config: object) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return Checkpoint(str(folder), "safetensors", str(folder), "x")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sentencepiece")


@pytest.fixture(scope="module")
def loaded(folder: Path) -> dict[bool, Tokenizer]:
    """By whether a space is put before a text."""
    files = {adds: write_gguf(folder / f"{adds}.gguf", rows(), add_space_prefix=adds) for adds in (True, False)}
    return {adds: load_tokenizer(checkpoint) for adds, checkpoint in files.items()}


TEXTS = st.text(st.sampled_from("  aabbcc1\u65e5\u672c\n\u00e9\U0001f600\t"), max_size=24) | st.text(max_size=12)


@settings(deadline=None)
@given(text=TEXTS.filter(lambda text: SPACE not in text), adds_space=st.booleans())
def test_encodes_as_the_algorithm_says(loaded: dict[bool, Tokenizer], text: str, adds_space: bool) -> None:
    assert loaded[adds_space].encode(text, False) == twin(text, adds_space)


@settings(deadline=None)
@given(text=TEXTS.filter(lambda text: SPACE not in text), adds_space=st.booleans())
def test_text_survives(loaded: dict[bool, Tokenizer], text: str, adds_space: bool) -> None:
    tokenizer = loaded[adds_space]
    assert tokenizer.decode(tokenizer.encode(text, False), skip_special_tokens=False) == text


@pytest.mark.parametrize("num_spaces", range(1, 40))
def test_runs_of_spaces_are_cut_from_the_left(loaded: dict[bool, Tokenizer], num_spaces: int) -> None:
    """A piece that can be made of several pairs: the leftmost of them goes first, as in the library itself."""
    text = " " * num_spaces + "1"
    assert loaded[False].encode(text, False) == twin(text, False)


def test_marked_pieces_are_found_in_text(loaded: dict[bool, Tokenizer]) -> None:
    ids, _ = tables()
    tokenizer = loaded[False]
    assert tokenizer.encode("a<end_of_turn>[IMG]</s>", False) == [ids["a"], 3, 4, 2]
    assert tokenizer.decode([3, 4, 2]) == "[IMG]"
    # what looks like a byte is text
    assert len(tokenizer.encode("<0x41>", False)) == 6


def test_a_space_is_put_before_each_text_between_marks(loaded: dict[bool, Tokenizer]) -> None:
    ids, _ = tables()
    assert loaded[True].encode("a</s>ab", False) == [ids[SPACE + "a"], 2, ids[SPACE + "ab"]]
    assert loaded[True].encode("", False) == []


@pytest.mark.parametrize(
    ("flags", "around"),
    [
        ({}, ([1], [])),
        ({"add_bos_token": False}, ([], [])),
        ({"add_bos_token": True, "add_eos_token": True}, ([1], [2])),
    ],
)
def test_texts_begin_with_bos_unless_the_file_says_no(
    tmp_path: Path, flags: dict[str, bool], around: tuple[list[int], list[int]]
) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", rows(), **flags))
    assert tokenizer.encode("ab", True) == around[0] + tokenizer.encode("ab", False) + around[1]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2, 3))


def test_runs_of_spaces_as_user_defined_pieces(tmp_path: Path) -> None:
    """Gemma's: written with spaces by newer converters, with U+2581 by older ones; both are the longest run."""
    for shown in (" ", SPACE):
        table = [
            *rows()[:261],
            (shown * 2, -1000.0, USER),
            (shown * 3, -1000.0, USER),
            (SPACE, -1.0, NORMAL),
            ("a", -2.0, 1),
        ]
        tokenizer = load_tokenizer(write_gguf(tmp_path / "x.gguf", table, add_space_prefix=False))
        assert tokenizer.encode("a   a a     a", False) == [264, 262, 264, 263, 264, 262, 261, 264]
        assert tokenizer.decode([264, 262, 264]) == "a   a"


@pytest.mark.parametrize("adds_space", [True, False])
def test_tokenizer_model_is_the_same_tokenizer(folder: Path, loaded: dict[bool, Tokenizer], adds_space: bool) -> None:
    checkpoint = write_directory(folder / f"model-{adds_space}", model_bytes(rows(), adds_space=adds_space))
    tokenizer = load_tokenizer(checkpoint)
    for text in ("", "ab abab ccc  1", "a</s>ab", "\u65e5\u672c \u00e9\n\na", " " * 9):
        for adds_special in (True, False):
            assert tokenizer.encode(text, adds_special) == loaded[adds_space].encode(text, adds_special)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids) == (1, (2,))


def test_the_configuration_decides_what_is_around_a_text(tmp_path: Path) -> None:
    ids, _ = tables()
    config = {"add_bos_token": False, "add_eos_token": True, "eos_token": "<end_of_turn>", "legacy": False}
    tokenizer = load_tokenizer(write_directory(tmp_path, model_bytes(rows()), **config))
    assert tokenizer.encode("ab", True) == [ids[SPACE + "ab"], 3]
    assert tokenizer.encode("a</s>ab", False) == [ids[SPACE + "a"], 2, ids["ab"]]


@pytest.mark.parametrize(
    ("model", "error", "says"),
    [
        (b"", CorruptCheckpoint, "0 pieces"),
        (b"IQ== 0\nIg== 1\n", CorruptCheckpoint, "no SentencePiece model"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", CorruptCheckpoint, "does not end"),
        (model_bytes(rows())[:-3], CorruptCheckpoint, "ends within"),
        (model_bytes(rows(), kind=1), UnsupportedModel, "of kind unigram"),
        (model_bytes(rows(), charsmap=b"xx"), UnsupportedModel, "normalizes"),
        (model_bytes([*rows(), rows()[-1]]), CorruptCheckpoint, "twice"),
        (
            model_bytes([(b"\xff".decode("latin1"), 0.0, 1)]).replace(b"\xc3\xbf", b"\xff\xff"),
            CorruptCheckpoint,
            "utf-8",
        ),
    ],
)
def test_a_file_that_is_no_such_model_says_why(tmp_path: Path, model: bytes, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        load_tokenizer(write_directory(tmp_path, model))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda writer: writer.add_token_scores([0.0]), "1 scores"),
        (lambda writer: writer.add_string("tokenizer.ggml.scores", "x"), "a list of numbers"),
    ],
)
def test_metadata_that_does_not_fit_says_why(
    tmp_path: Path, change: Callable[[gguf.GGUFWriter], None], says: str
) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["a", "b"])
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CorruptCheckpoint, match=says):
        load_tokenizer(Checkpoint(str(path), "gguf", str(path), "x"))
