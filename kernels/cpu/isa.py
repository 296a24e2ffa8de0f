"""Which vector instructions the tiles are made of."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from llvmlite import binding

_AVX2 = ("avx2", "fma", "f16c")
_VNNI = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512vnni")


class Isa(Enum):
    """Instructions, by the width of their registers."""

    AVX2 = 256
    VNNI = 512
    """AVX-512 with byte dot products."""

    @property
    def lanes(self) -> int:
        """float32 or int32 values in a register."""
        return self.value // 32


@lru_cache
def host_isa() -> Isa | None:
    """The best of this CPU; None if it has neither (or is no x86)."""
    features = binding.get_host_cpu_features()
    for isa, needed in ((Isa.VNNI, _VNNI), (Isa.AVX2, _AVX2)):
        if all(features.get(name) for name in needed):
            return isa
    return None
