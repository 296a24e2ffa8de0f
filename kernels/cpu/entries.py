"""What Python calls of the compiled code: found on the disk, or compiled once for all processes of a machine.

numba, which compiles, is imported only where something has to be compiled: it takes half a second and 60 MiB.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from hashlib import sha256

from .code_cache import keep_object, read_object
from .object_file import load_function
from .packed_arguments import Packed

ENTRY = "callboard_entry"
"""The name of the one function of an object file that is called from outside."""
_Code = Callable[[bytes], int]
_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p)


class CompiledFunction:
    """A `compiled` function of a module beside this one. It may be called by several threads at once and runs without
    the interpreter's lock."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name
        self._codes: dict[str, _Code] = {}
        """By kinds of arguments."""

    def __call__(self, *arguments: object) -> int:
        """Arguments may be `Packed`. Returns the function's integer, if it has one."""
        parts = [value if isinstance(value, Packed) else Packed(value) for value in arguments]
        kinds = "".join([part.kinds for part in parts])
        code = self._codes.get(kinds)
        if code is None:
            code = self._codes[kinds] = self._find(kinds, parts)
        return code(b"".join([part.words for part in parts]))

    def _find(self, kinds: str, parts: list[Packed]) -> _Code:
        key = f"{self._module}.{self._name}-{sha256(kinds.encode()).hexdigest()[:16]}"

        def compile_it() -> bytes:
            from .compile_entry import compile_entry

            return compile_entry(self._module, self._name, [part.value for part in parts])

        return _PROTOTYPE(_address(key, compile_it))


class NativeFunction:
    """A `native` function of a module beside this one, by its address."""

    def __init__(self, module: str, name: str) -> None:
        self._module, self._name = module, name

    @cache  # noqa: B019  (there is one of each for the whole process)
    def __call__(self) -> int:
        def compile_it() -> bytes:
            from .compile_entry import compile_native

            return compile_native(self._module, self._name)

        return _address(f"{self._module}.{self._name}", compile_it)


def _address(key: str, compile_it: Callable[[], bytes]) -> int:
    content = read_object(key)
    if content is None:
        content = compile_it()
        keep_object(key, content)
    return load_function(content, ENTRY)


run_layers = CompiledFunction("decoder_step", "run_layers")
compute_logits = CompiledFunction("decoder_step", "compute_logits")
interleave = CompiledFunction("pack_panels", "interleave")
interleave_scales = CompiledFunction("pack_panels", "interleave_scales")
split_nibbles = CompiledFunction("pack_panels", "split_nibbles")
quantize_four = CompiledFunction("pack_panels", "quantize_four")
quantize_eight = CompiledFunction("pack_panels", "quantize_eight")
choose_token = CompiledFunction("token_choice", "choose_token")
forbid_others = CompiledFunction("allowed_logits", "forbid_others")
look_up_ngrams = CompiledFunction("ngram_lookup", "look_up_ngrams")
exchange = CompiledFunction("rank_exchange", "exchange")
sum_up = CompiledFunction("rank_exchange", "sum_up")
draft_suffixes = CompiledFunction("suffix_drafts", "draft_suffixes")

PANELS = {
    4: NativeFunction("panels", "int4_panel"),
    8: NativeFunction("panels", "int8_panel"),
    16: NativeFunction("panels", "bfloat16_panel"),
    32: NativeFunction("panels", "float32_panel"),
}
"""Bits of a weight -> the function that multiplies rows with a panel of such."""
product = NativeFunction("panels", "product")
score_float32 = NativeFunction("attention_tiles", "score_float32")
score_bfloat16 = NativeFunction("attention_tiles", "score_bfloat16")
sum_float32 = NativeFunction("attention_tiles", "sum_float32")
sum_bfloat16 = NativeFunction("attention_tiles", "sum_bfloat16")
