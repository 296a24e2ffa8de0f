"""Types of tensors in GGUF files: numbers, names, blocks."""

from __future__ import annotations

TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    20: ("IQ4_NL", 32, 18),
    23: ("IQ4_XS", 256, 136),
    30: ("BF16", 1, 2),
}
"""Type number -> (name, elements a block, bytes a block) of the tensor types that can be loaded."""

BLOCKS: dict[str, tuple[int, int]] = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}
"""Name -> (elements a block, bytes a block)."""


def type_name(type_number: int) -> str:
    """The name of any type that the format has, `number N` for others."""
    from gguf.constants import GGMLQuantizationType

    try:
        return str(GGMLQuantizationType(type_number).name)
    except ValueError:
        return f"number {type_number}"
