"""Draft heads as files: where they are, the shape of their layer, what they take.

`models.draft_head_loader` reads them."""

from __future__ import annotations

from math import prod
from pathlib import Path

import msgspec

from ..errors import ConfigError
from .hf_shape import read_hf_config
from .model_weights import count_parameters
from .mtp_names import MTP_LAYERS
from .progress import Progress
from .resolve import resolve_checkpoint
from .safetensors_files import read_safetensors_directory
from .shape import Checkpoint, DraftCheckpoint, ModelShape

_PICKLES = ("*.bin", "*.pt")
"""What torch saves: reading them may run what they say."""


def find_head(
    method: str, source: str | None, target: Checkpoint, target_shape: ModelShape, progress: Progress | None = None
) -> DraftCheckpoint:
    """The head `source`, a directory of this machine or a hub id; of the method `mtp` that in the target by default.

    Raises ConfigError for a directory without a head, and what `resolve_checkpoint` and `read_shape` raise."""
    if method == "mtp":
        checkpoint = target if source is None else resolve_checkpoint(source, progress=progress)
        return DraftCheckpoint(checkpoint, _of_layers(target_shape, 1), _mtp_elements(checkpoint))
    assert source is not None
    directory = Path(source).expanduser()
    if directory.is_dir():
        checkpoint = Checkpoint(source, "safetensors", str(directory.resolve()), directory.name)
    else:
        checkpoint = resolve_checkpoint(source, progress=progress)
    files = list(Path(checkpoint.path).glob("*.safetensors"))
    if not files and (pickles := [path.name for each in _PICKLES for path in Path(checkpoint.path).glob(each)]):
        raise ConfigError(
            f"{checkpoint.path} has the draft head as {', '.join(sorted(pickles))}, which is a pickle and is not read",
            advice="convert it once, where you trust it: "
            'safetensors.torch.save_file(torch.load(FILE, weights_only=True), "model.safetensors")',
        )
    if not files or not (Path(checkpoint.path) / "config.json").is_file():
        raise ConfigError(
            f"{checkpoint.path} is no draft head: it has to hold config.json and *.safetensors",
            advice="name the directory of a head that was trained for this model",
        )
    num_elements = sum(path.stat().st_size for path in files) // 2  # of two bytes as a rule, of four at most half
    if method == "medusa":
        return DraftCheckpoint(checkpoint, _of_layers(target_shape, 0), num_elements)
    shape = _of_layers(read_hf_config(checkpoint.path, "llama"), 1)
    return DraftCheckpoint(checkpoint, shape, num_elements)


def _mtp_elements(checkpoint: Checkpoint) -> int:
    if checkpoint.format != "safetensors":
        raise ConfigError(
            f"{checkpoint.path} has no multi-token-prediction layers: they are read from *.safetensors",
            advice='choose another [speculative] method, or a model with tensors "model.mtp_layers.0.*"',
        )
    sizes = [tensor.shape for name, tensor in read_safetensors_directory(checkpoint.path).items() if MTP_LAYERS in name]
    if not sizes:
        raise ConfigError(
            f"{checkpoint.path} has no tensors {MTP_LAYERS}0.*",
            advice="choose another [speculative] method, or name the model that has them",
        )
    return sum(prod(size) for size in sizes)


def _of_layers(shape: ModelShape, num_layers: int) -> ModelShape:
    """What has keys and values: so many layers, none with a window."""
    cut = msgspec.structs.replace(shape, num_layers=num_layers, windows=(), window_rope_theta=None)
    return msgspec.structs.replace(cut, num_parameters=count_parameters(cut))
