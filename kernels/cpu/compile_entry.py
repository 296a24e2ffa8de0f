"""Compiles what `entries` has not found on the disk: numba's code for one function, as an object file of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType

from llvmlite import ir
from numba import typeof, types
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock
from numba.core.sigutils import normalize_signature
from numba.extending import intrinsic

from ...errors import BadObjectFile
from . import (
    allowed_logits,
    attention_tiles,
    decoder_step,
    ngram_lookup,
    pack_panels,
    panels,
    rank_exchange,
    rows,
    suffix_drafts,
    token_choice,
)
from .entries import ENTRY
from .object_file import is_outside, undefined_symbols
from .vector_ir import INT64

_MODULES: dict[str, ModuleType] = {
    "allowed_logits": allowed_logits,
    "attention_tiles": attention_tiles,
    "decoder_step": decoder_step,
    "ngram_lookup": ngram_lookup,
    "pack_panels": pack_panels,
    "panels": panels,
    "rank_exchange": rank_exchange,
    "rows": rows,
    "suffix_drafts": suffix_drafts,
    "token_choice": token_choice,
}
"""Where `entries` come from."""
_OF_EXCEPTIONS = {
    "NRT_Free",
    "NRT_MemInfo_call_dtor",
    "numba_do_raise",
    "numba_gil_ensure",
    "numba_gil_release",
    "numba_runtime_build_excinfo_struct",
    "numba_unpickle",
}
"""What numba's runtime would do if a function raised, or ended the life of an array of its own: functions here do
neither."""


def compile_entry(module: str, name: str, values: Sequence[object]) -> bytes:
    """A function that is given the address of its arguments, packed, for arguments of these types."""
    function = getattr(_MODULES[module], name)
    kinds = tuple(typeof(value) for value in values)
    function.compile(kinds)
    returned = function.overloads[kinds].signature.return_type
    arguments = _reader(kinds)

    def call(table):
        return function(*arguments(table))

    result = types.int64 if isinstance(returned, types.Integer) else types.void
    return _object_of(call, result(types.intp))


def compile_native(module: str, name: str) -> bytes:
    """A `native` function."""
    return _object_of(*getattr(_MODULES[module], name))


def _reader(kinds: tuple[types.Type, ...]) -> Callable[..., object]:
    """An intrinsic: address of a table of words -> tuple of the values that they are, as `packed_arguments` says."""
    result = types.BaseTuple.from_types(kinds)

    def codegen(context, builder, signature, arguments):
        packer = context.get_arg_packer(kinds)
        leaves = []
        for index, kind in enumerate(packer.argument_types):
            address = builder.add(arguments[0], ir.Constant(INT64, 8 * index))
            is_bool = isinstance(kind, ir.IntType) and kind.width == 1
            stored = ir.IntType(8) if is_bool else kind
            leaf = builder.load(builder.inttoptr(address, stored.as_pointer()))
            leaves.append(builder.trunc(leaf, kind) if is_bool else leaf)
        return context.make_tuple(builder, result, packer.from_arguments(builder, leaves))

    @intrinsic
    def arguments(context, table):
        return result(types.intp), codegen

    return arguments


@global_compiler_lock
def _object_of(function: Callable[..., object], signature: object) -> bytes:
    compiled = CFunc(function, normalize_signature(signature), locals={}, options={"error_model": "numpy"})
    result = compiled._compile_uncached()  # and not put into this process's memory, as `compile` would
    result.library._ensure_finalized()
    module = result.library._final_module.clone()
    module.get_function(result.fndesc.llvm_cfunc_wrapper_name).name = ENTRY
    content = bytes(result.library.codegen._tm.emit_object(module))
    if missing := {name for name in undefined_symbols(content) if not is_outside(name)} - _OF_EXCEPTIONS:
        raise BadObjectFile(f"{function.__name__} needs numba's runtime, for it makes arrays: {missing}")
    return content
