"""NCCL's functions, called by their C names: what torch.distributed keeps from a graph that others record is not there.

NVLink multicast (NVLS) is off: a program that fails with it can leave the GPUs of a host out of service. Connections
are made at once and buffers of graphs are not registered, so that a rank may record a graph while others do not.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import torch

from ...errors import DeviceFault, StartFailed

ID_BYTES = 128
SUM = 0
_NAME = "libnccl.so.2"
_SETTINGS = {"NCCL_NVLS_ENABLE": "0", "NCCL_RUNTIME_CONNECT": "0", "NCCL_GRAPH_REGISTER": "0"}
"""NCCL reads them from the environment alone."""
_DTYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.int64: 4,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}


class _UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * ID_BYTES),)


_SIZE, _POINTER, _INT = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "ncclGetVersion": (_POINTER,),
    "ncclGetUniqueId": (_POINTER,),
    "ncclCommInitRank": (_POINTER, _INT, _UniqueId, _INT),
    "ncclCommAbort": (_POINTER,),
    "ncclCommDestroy": (_POINTER,),
    "ncclAllReduce": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclAllGather": (_POINTER, _POINTER, _SIZE, _INT, _POINTER, _POINTER),
    "ncclBroadcast": (_POINTER, _POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclSend": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclRecv": (_POINTER, _SIZE, _INT, _INT, _POINTER, _POINTER),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
}


class NcclLibrary:
    """The library that torch came with. Calls raise DeviceFault."""

    def __init__(self) -> None:
        """Raises StartFailed if there is none."""
        os.environ.update(_SETTINGS)
        self._library = _load()
        self._library.ncclGetErrorString.restype = ctypes.c_char_p
        for name, arguments in _ARGUMENTS.items():
            getattr(self._library, name).argtypes = arguments

    def version(self) -> str:
        code = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(code))
        major, rest = divmod(code.value, 10_000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def new_id(self) -> bytes:
        """Of a group; its ranks need the same."""
        unique = _UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique))
        return bytes(unique)

    def join(self, unique_id: bytes, rank: int, size: int) -> int:
        """Make a group's communicator on the current device; returns when all ranks have come."""
        handle = ctypes.c_void_p()
        self.call("ncclCommInitRank", ctypes.byref(handle), size, _UniqueId.from_buffer_copy(unique_id), rank)
        assert handle.value is not None
        return handle.value

    def call(self, name: str, *arguments: object) -> None:
        """Raises DeviceFault with NCCL's words."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DeviceFault(f"{name}: {self._library.ncclGetErrorString(code).decode()}")


def dtype_of(x: torch.Tensor) -> int:
    """NCCL's number."""
    return _DTYPES[x.dtype]


def _load() -> ctypes.CDLL:
    found = find_spec("nvidia")  # a folder of several packages; that of NCCL has no module
    for folder in () if found is None else found.submodule_search_locations or ():
        path = Path(folder) / "nccl" / "lib" / _NAME
        if path.exists():
            return ctypes.CDLL(str(path))
    with suppress(OSError):
        return ctypes.CDLL(_NAME)
    raise StartFailed(
        f"{_NAME} is not there, which GPUs of one model exchange with",
        advice="install nvidia-nccl-cu12 or nvidia-nccl-cu13, as of the CUDA version that torch has",
        phase="device",
    )
