"""Compiled code that was put into memory from an object file does what numba's own call of the same function does."""

from __future__ import annotations

import struct
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from callboard.errors import BadObjectFile
from callboard.kernels.cpu import code_cache
from callboard.kernels.cpu.code_cache import keep_object, read_object
from callboard.kernels.cpu.entries import CompiledFunction, choose_token, interleave
from callboard.kernels.cpu.object_file import load_function
from callboard.kernels.cpu.pack_panels import interleave as numbas_interleave
from callboard.kernels.cpu.packed_arguments import Packed
from callboard.kernels.cpu.rows import gate, round_row
from callboard.kernels.cpu.token_choice import choose_token as numbas_choose_token

RANDOM = np.random.default_rng(6)


@pytest.mark.parametrize("width", [8, 16])
def test_arrays_of_several_dimensions(width):
    quads = RANDOM.integers(0, 1 << 32, (32, 16), np.uint32) & np.uint32(0x0F0F0F0F)
    ours, numbas = (np.zeros((2, width, 16), np.uint32) for _ in range(2))
    interleave(quads, ours)
    numbas_interleave(quads, numbas)
    assert ours.any()
    np.testing.assert_array_equal(ours, numbas)


def test_integers_floats_and_what_is_returned():
    words = np.empty((4, 8), np.uint64)
    for seed in range(50):
        logits = RANDOM.standard_normal(1000).astype(np.float32)
        threshold, key = np.float32(0.5), (np.uint64(seed), np.uint64(0xFFFFFFFF - seed))
        arguments = logits, threshold, *key, np.uint64(1 << 63 | seed), np.uint64(3), np.uint64(seed % 3), words
        assert choose_token(*arguments) == numbas_choose_token(*arguments)
    assert choose_token(logits, np.float32(np.inf), *key, *[np.uint64(0)] * 3, words) == -1


@pytest.mark.parametrize("is_gelu", [False, True])
def test_a_bool_and_lines_of_a_larger_array(is_gelu):
    entry = CompiledFunction("rows", "gate")
    wide = RANDOM.standard_normal((3, 64)).astype(np.float32)
    ours, numbas = (np.zeros((3, 96), np.float32) for _ in range(2))
    for row in range(3):
        entry(wide[row], 32, is_gelu, ours[row, :32])
        gate(wide[row], 32, is_gelu, numbas[row, :32])
    assert ours.any()
    np.testing.assert_array_equal(ours, numbas)


def test_packed_arguments_are_the_same_arguments_for_every_thread():
    entry = CompiledFunction("rows", "round_row")
    x = RANDOM.standard_normal((4, 96)).astype(np.float32)
    fine_from = Packed(np.float32(0.5))
    results = [(np.zeros(192, np.int8), np.zeros((3, 3), np.float32)) for _ in range(8)]
    threads = [
        threading.Thread(target=lambda i=i: entry(Packed(x[i % 4]), fine_from, *map(Packed, results[i])))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, (values, scales) in enumerate(results):
        numbas = np.zeros(192, np.int8), np.zeros((3, 3), np.float32)
        round_row(x[i % 4], np.float32(0.5), *numbas)
        np.testing.assert_array_equal(values, numbas[0])
        np.testing.assert_array_equal(scales, numbas[1])


def test_words_are_the_arrays_own():
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)[:, ::2]
    packed = Packed((array, 7, True, np.float32(1.5)))
    owner, parent, size, itemsize, address, *rest = np.frombuffer(packed.words, np.int64).tolist()
    assert (owner, parent, size, itemsize, address) == (0, 0, 16, 2, array.ctypes.data)
    assert rest == [2, 2, 4, 24, 16, 2, 7, 1, struct.unpack("<i", struct.pack("<f", 1.5))[0]]


def test_other_types_have_other_code():
    kinds = [
        Packed(value).kinds
        for value in (
            np.zeros(4, np.float32),
            np.zeros(4, np.int32),
            np.zeros((2, 2), np.float32),
            np.zeros((2, 3), np.float32)[:, :2],
            np.broadcast_to(np.float32(0), (4,)),
            1,
            True,
            np.float32(1),
            np.uint64(1),
        )
    ]
    assert len(set(kinds)) == len(kinds)
    with pytest.raises(TypeError, match="str"):
        Packed("text")


def test_what_is_no_object_file_is_refused():
    with pytest.raises(BadObjectFile):
        load_function(b"#!/bin/sh\n" + bytes(64), "callboard_entry")


def test_a_kept_file_that_is_damaged_is_as_none(monkeypatch, tmp_path):
    monkeypatch.setattr(code_cache, "_object_folder", lambda: tmp_path / "new")
    assert read_object("f") is None
    keep_object("f", b"code")
    assert read_object("f") == b"code"
    (path,) = (tmp_path / "new").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert read_object("f") is None


@pytest.mark.slow
def test_numba_is_for_what_is_not_compiled_yet(tmp_path):
    """In a folder of its own: the first process compiles, the second one computes the same without numba."""
    code = (
        "import sys, numpy as np\n"
        "from callboard.kernels.cpu.entries import split_nibbles\n"
        "q = np.zeros((1, 32), np.uint8)\n"
        "split_nibbles(np.arange(100, 120, dtype=np.uint8)[None], 4, 16, q)\n"
        "print(q.tolist(), 'numba' in sys.modules)"
    )
    command = ["env", f"NUMBA_CACHE_DIR={tmp_path}", sys.executable, "-P", "-c", code]
    lines = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2)]
    expected = [[byte & 15 for byte in range(104, 120)] + [byte >> 4 for byte in range(104, 120)]]
    assert lines == [f"{expected} True\n", f"{expected} False\n"]
    assert [path.suffix for path in Path(tmp_path).glob("*/code-*/*")] == [".o"]
