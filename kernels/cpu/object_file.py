"""Machine code out of an object file (ELF, x86-64, as LLVM writes it for numba), put into memory and made callable.

A linker of the smallest kind. The file has one function that is called from outside; it is compiled in the large code
model, so that it holds whole addresses: nothing has to lie near anything else. Tables for unwinding stay outside, for
nothing is thrown.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ...errors import BadObjectFile

_HEADER = struct.Struct(
    "<16x 24x Q 10x HHH"
)  # where the sections stand, how long an entry is, how many, which has names
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_WRITABLE, _LOADED = 1, 2
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_WHOLE, _RELATIVE_HALF, _CALL, _RELATIVE = 1, 2, 4, 24
"""Kinds of relocations: R_X86_64_64, PC32, PLT32, PC64."""

_KEPT: list[mmap.mmap] = []
"""Code stays as long as the process."""


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    of: int
    alignment: int
    entry_size: int


def load_function(data: bytes, name: str) -> int:
    """The address of a function of the file. Raises BadObjectFile, OSError."""
    return _Linker(data).load(name)


def undefined_symbols(data: bytes) -> set[str]:
    """Names that the file takes from elsewhere."""
    return {name for name, place, _, _ in _Linker(data).symbols() if place == _UNDEFINED and name}


class _Linker:
    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise BadObjectFile("this is no 64-bit ELF file")
        self._data = data
        start, entry_size, count, names = _HEADER.unpack_from(data)
        self._sections = [_Section(*_SECTION.unpack_from(data, start + entry_size * i)) for i in range(count)]
        self._names = self._sections[names]
        self._table = next(section for section in self._sections if section.kind == _SYMBOLS)

    def symbols(self) -> Iterator[tuple[str, int, int, int]]:
        """(name, section, value, size)"""
        table, strings = self._table, self._sections[self._table.link]
        entries = self._data[table.offset : table.offset + table.size]
        for name, _, _, section, value, size in _SYMBOL.iter_unpack(entries):
            yield self._text(strings, name), section, value, size

    def load(self, function: str) -> int:
        places, symbols, size = self._lay_out()
        memory = mmap.mmap(-1, size)
        _KEPT.append(memory)
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for index, place in places.items():
            section = self._sections[index]
            if section.kind != _NO_BITS:
                memory[place : place + section.size] = self._data[section.offset : section.offset + section.size]
        addresses: list[int] = []
        found = 0
        for name, section_index, value, _ in symbols:
            if section_index == _UNDEFINED:
                address = _address_outside(name) if name else 0
            elif section_index == _COMMON:
                address = base + value
            else:
                address = value + (base + places.get(section_index, 0) if section_index != _ABSOLUTE else 0)
            addresses.append(address)
            if name == function and section_index != _UNDEFINED:
                found = address
        if not found:
            raise BadObjectFile(f"the file has no function {function}")
        self._relocate(memory, base, places, addresses)
        _make_executable(base, size)
        return found

    def _lay_out(self) -> tuple[dict[int, int], list[tuple[str, int, int, int]], int]:
        """Where each section comes, the symbols (of common ones with their place), and the size of all."""
        places: dict[int, int] = {}
        end = 0
        for index, section in enumerate(self._sections):
            is_table_for_unwinding = self._text(self._names, section.name) == ".eh_frame"
            if section.flags & _LOADED and section.size and not is_table_for_unwinding:
                if section.flags & _WRITABLE:
                    raise BadObjectFile("the file has variables: all memory of code is for reading only")
                places[index] = end = -(-end // section.alignment) * section.alignment
                end += section.size
        symbols = []
        for name, section_index, value, size in self.symbols():
            if section_index == _COMMON:
                value = end = -(-end // value) * value  # which was its alignment
                end += size
            symbols.append((name, section_index, value, size))
        return places, symbols, max(end, 1)

    def _relocate(self, memory: mmap.mmap, base: int, places: dict[int, int], addresses: list[int]) -> None:
        for section in self._sections:
            if section.kind != _RELOCATIONS or section.of not in places:
                continue
            start = places[section.of]
            for offset, what, addend in _RELOCATION.iter_unpack(
                self._data[section.offset : section.offset + section.size]
            ):
                value, kind, place = addresses[what >> 32] + addend, what & 0xFFFFFFFF, start + offset
                if kind == _WHOLE:
                    struct.pack_into("<Q", memory, place, value)
                elif kind == _RELATIVE:
                    struct.pack_into("<q", memory, place, value - base - place)
                elif kind in (_RELATIVE_HALF, _CALL):
                    struct.pack_into("<i", memory, place, value - base - place)
                else:
                    raise BadObjectFile(f"relocation of kind {kind}")

    def _text(self, strings: _Section, start: int) -> str:
        begin = strings.offset + start
        return self._data[begin : self._data.index(b"\0", begin)].decode()


@lru_cache
def _find_outside(name: str) -> int | None:
    for library in (ctypes.CDLL(None), ctypes.CDLL("libm.so.6")):
        with suppress(AttributeError):
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    return None


def is_outside(name: str) -> bool:
    """Whether the C library or the interpreter has it."""
    return _find_outside(name) is not None


def _address_outside(name: str) -> int:
    """What nobody has ends the process when it is called."""
    address = _find_outside(name) or _find_outside("abort")
    assert address is not None
    return address


def _make_executable(base: int, size: int) -> None:
    """And no longer writable."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(base), ctypes.c_size_t(size), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory cannot be made executable")
