"""How a worker's device holds and multiplies a model: what the sizes in the memory ledger depend on.

The same choice as `models/linear.py` makes by trying (a test holds the two together), made here from the CPU's flags,
for the processes that plan have no torch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from .plan import worker_process
from .schema import Topology

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "int8": 4, "int4": 4}
_NATIVE_BFLOAT16 = ({"avx512bw", "avx512vl", "avx512dq"}, {"bf16"})
"""Flags of an x86 and of an ARM CPU for which oneDNN multiplies bfloat16."""
_HALF_COLUMNS = 512
"""FBGEMM fills the columns of a matrix up to a multiple of this."""


class Arithmetic(msgspec.Struct, frozen=True):
    """Bytes an element, and the form of the matrices."""

    dtype_bytes: int
    """Of the model's dtype: embedding, queries, keys and values as they are computed, attention's output."""
    kv_dtype_bytes: int
    """In the KV cache."""
    compute_bytes: int
    """Of the rows between: hidden states, and what the matrices multiply and return."""
    matrix_bytes: int
    matrix_columns: int = 1
    """Columns of a matrix are filled up to a multiple of this."""
    is_head_copied: bool = True
    """A tied head is held beside the embedding: in packed form."""
    reads_kv_in_place: bool = False
    """Decoding rows read the cache through an index; else their keys and values are gathered first."""
    packed_bits: Mapping[str, int] = {}
    """Canonical name of every matrix -> bits of a weight, in packed form; empty: not in packed form."""


def arithmetic_of(
    topology: Topology, cpu_flags: Collection[str], packed_bits: Mapping[str, int] | None = None
) -> Arithmetic:
    """For a topology with resolved dtypes; `cpu_flags` as in /proc/cpuinfo; `packed_bits` (checkpoints.weight_formats)
    where the compiled step is used."""
    dtype, kv_dtype = (DTYPE_BYTES[name] for name in (topology.model.dtype, topology.model.kv_dtype))
    if worker_process(topology).device != "cpu":
        return Arithmetic(dtype, kv_dtype, dtype, dtype, is_head_copied=False)
    if packed_bits:
        return Arithmetic(4, kv_dtype, 4, 4, packed_bits=packed_bits)
    if dtype == 4:
        return Arithmetic(4, kv_dtype, 4, 4, reads_kv_in_place=kv_dtype == 4)
    if any(flags <= set(cpu_flags) for flags in _NATIVE_BFLOAT16):
        return Arithmetic(dtype, kv_dtype, dtype, dtype)
    if "avx2" in cpu_flags:
        return Arithmetic(dtype, kv_dtype, 4, 2, _HALF_COLUMNS)
    return Arithmetic(dtype, kv_dtype, 4, 4)
