"""The reader of GGUF heads, against the `gguf` package's writer and reader; malformed files."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from callboard.checkpoints import gguf_metadata, read_gguf
from callboard.errors import CorruptCheckpoint, ModelNotFound, UnsupportedModel

WriteGGUF = Callable[..., Path]
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def test_metadata_and_tensors_are_those_of_the_gguf_package(write_gguf: WriteGGUF) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_array("x.ints", [1, -2, 3])
        writer.add_array("x.floats", [0.5, 1.5])
        writer.add_array("x.bools", [True, False])
        writer.add_array("x.strings", ["", "ä", "日本"])
        writer.add_uint64("x.u64", 2**63)
        writer.add_int8("x.i8", -7)
        writer.add_float64("x.f64", 1e300)
        writer.add_bool("x.flag", True)

    path = write_gguf(extra=extra, quantization=gguf.GGMLQuantizationType.Q8_0)
    ours, oracle = read_gguf(str(path)), gguf.GGUFReader(path)
    expected = {key: field.contents() for key, field in oracle.fields.items() if not key.startswith("GGUF.")}
    assert dict(ours.metadata) == expected
    assert gguf_metadata(str(path)) == expected
    assert list(ours.tensors) == [tensor.name for tensor in oracle.tensors]
    for tensor in oracle.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.dims == tuple(tensor.shape.tolist())
        assert mine.type == tensor.tensor_type.name
        assert (mine.offset, mine.num_bytes) == (tensor.data_offset, tensor.n_bytes)


def test_a_changed_file_is_read_again(write_gguf: WriteGGUF) -> None:
    path = write_gguf()
    assert "x.new" not in gguf_metadata(str(path))
    write_gguf(extra=lambda writer: writer.add_string("x.new", "1"))
    assert gguf_metadata(str(path))["x.new"] == "1"


def test_typed_access_names_the_key(write_gguf: WriteGGUF) -> None:
    file = read_gguf(str(write_gguf()))
    assert file.integer("llama.block_count") == 2
    assert file.integer("llama.none") is None
    for read in (file.text, file.flag, file.texts, file.integers):
        with pytest.raises(CorruptCheckpoint, match=r"llama\.block_count must be"):
            read("llama.block_count")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "too few"),
        (b"GGUF", "too few"),
        (b"\x80\x02pickle" * 10, "begins with"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), "metadata count"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 2**60, 0), "tensor count"),
        (struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, 2**62), "truncated or malformed"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 4, 2**61), "length of"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 4, 2**23), "needs"),
        (struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"a", 9, 9, 1), "nested"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"a", 77), "unknown type 77"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"\xff", 4), "not UTF-8"),
        (struct.pack("<4sIQQQ1sI", b"GGUF", 3, 1, 0, 1, b"t", 2**31), "dimensions"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 2**63, 0, 0), "ends at byte"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 33, 8, 0), "multiple of 32"),
        (struct.pack("<4sIQQQ1sIQIQ", b"GGUF", 3, 1, 0, 1, b"t", 1, 0, 0, 0), "positive"),
    ],
)
def test_nonsense_is_corrupt_and_says_what(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=says) as caught:
        read_gguf(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("version", "says"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")])
def test_other_versions_are_named(tmp_path: Path, version: int, says: str) -> None:
    path = tmp_path / "old.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", version, 0, 0))
    with pytest.raises(UnsupportedModel, match=says):
        read_gguf(str(path))


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="No such file"):
        read_gguf(str(tmp_path / "none.gguf"))


@relaxed
@given(data=st.data())
def test_a_truncated_file_is_corrupt_wherever_it_ends(write_gguf: WriteGGUF, data: st.DataObject) -> None:
    whole = write_gguf("whole.gguf")
    content = whole.read_bytes()
    last = max(tensor.offset + tensor.num_bytes for tensor in read_gguf(str(whole)).tensors.values())
    path = whole.with_name("cut.gguf")
    path.write_bytes(content[: data.draw(st.integers(0, last - 1))])
    with pytest.raises(CorruptCheckpoint):
        read_gguf(str(path))


@relaxed
@given(changes=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes_never_give_another_error(write_gguf: WriteGGUF, changes: list[tuple[int, int]]) -> None:
    whole = write_gguf("whole.gguf")
    content = bytearray(whole.read_bytes())
    for position, value in changes:
        content[position] = value
    path = whole.with_name("changed.gguf")
    path.write_bytes(content)
    with contextlib.suppress(CorruptCheckpoint, UnsupportedModel):
        read_gguf(str(path))
