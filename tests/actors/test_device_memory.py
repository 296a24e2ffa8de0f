"""How a CUDA device is called where the driver's tool is asked."""

from __future__ import annotations

import pytest

from callboard.actors.device_memory import driver_name
from callboard.errors import StartFailed


@pytest.mark.parametrize(
    ("visible", "device", "name"),
    [
        (None, "cuda", "0"),
        (None, "cuda:3", "3"),
        ("5", "cuda", "5"),
        ("5, 2", "cuda:1", "2"),
        ("GPU-8f6d8f3a,GPU-11", "cuda:1", "GPU-11"),
    ],
)
def test_devices_are_counted_as_cuda_counts_them(
    visible: str | None, device: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert driver_name(device) == name


@pytest.mark.parametrize(("visible", "device"), [("", "cuda"), ("5", "cuda:1")])
def test_a_device_that_is_not_visible_is_named(visible: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(StartFailed, match=f"{device} is not visible: CUDA_VISIBLE_DEVICES is {visible!r}"):
        driver_name(device)
