"""GPU memory of every rank of a host, as each of them reaches it: CUDA's handles for other processes.

By the driver's C functions, on memory of their own: a handle is of a whole allocation, and torch's hold many tensors.
"""

from __future__ import annotations

import ctypes

import torch

from ...errors import DeviceFault, StartFailed
from ...models.collective import Collective

_HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_byte * _HANDLE_BYTES),)


_ARGUMENTS: dict[str, tuple[type, ...]] = {
    "cuMemAlloc_v2": (ctypes.c_void_p, ctypes.c_size_t),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemsetD8_v2": (ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t),
    "cuCtxSynchronize": (),
    "cuIpcGetMemHandle": (ctypes.c_void_p, ctypes.c_uint64),
    "cuIpcOpenMemHandle_v2": (ctypes.c_void_p, _Handle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (ctypes.c_uint64,),
    "cuGetErrorName": (ctypes.c_int, ctypes.c_void_p),
}


class PeerMemory:
    """A buffer of `num_bytes` bytes on each rank's device, zeros at first, and the addresses of all of them here."""

    def __init__(self, group: Collective, device: torch.device, num_bytes: int) -> None:
        """`group`: the same ranks by way of the host. Raises DeviceFault, on all ranks, where a GPU does not reach
        another's memory."""
        self._driver = _load_driver()
        self._own = 0
        self._others: list[int] = []
        with torch.cuda.device(device):
            torch.cuda.synchronize()  # the device's context is there, and this thread's
            error, handle = None, bytes(_HANDLE_BYTES)
            try:
                handle = self._allocate(num_bytes)
            except DeviceFault as fault:
                error = fault
            handles = group.all_gather(torch.frombuffer(bytearray(handle), dtype=torch.uint8))
            addresses: list[int] = []
            try:
                for rank, each in enumerate(handles):
                    addresses.append(self._own if rank == group.rank else self._open(bytes(each.tolist())))
            except DeviceFault as fault:
                error = error or fault
            are_there = group.all_gather(torch.tensor([error is None]))
            if not are_there.all():
                self.close()
                raise error or DeviceFault("another rank cannot reach the memory of all GPUs")
            self.bases = torch.tensor(addresses, device=device)
            """int64 [size]: where the buffer of each rank is, for kernels of this device."""

    def close(self) -> None:
        """When nothing that was launched, here or there, uses it any more. Twice is once."""
        for address in self._others:
            self._call("cuIpcCloseMemHandle", address)
        if self._own:
            self._call("cuMemFree_v2", self._own)
        self._own, self._others = 0, []

    def _allocate(self, num_bytes: int) -> bytes:
        """The handle of zeros."""
        own = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(own), num_bytes)
        self._own = own.value
        self._call("cuMemsetD8_v2", own, 0, num_bytes)
        self._call("cuCtxSynchronize")
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), own)
        return bytes(handle)

    def _open(self, handle: bytes) -> int:
        address = ctypes.c_uint64()
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(address), _Handle.from_buffer_copy(handle), _LAZY_PEER_ACCESS)
        self._others.append(address.value)
        return address.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._driver, name)(*arguments)
        if code:
            words = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(words))
            raise DeviceFault(f"{name}: {(words.value or b'?').decode()} ({code})")


def _load_driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise StartFailed(f"no CUDA driver: {error}", phase="device") from error
    for name, arguments in _ARGUMENTS.items():
        getattr(driver, name).argtypes = arguments
    return driver
