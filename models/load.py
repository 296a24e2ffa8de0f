"""From a checkpoint's files to a model that runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, assert_never

from ..checkpoints.gguf_rope import ROPE_FACTORS
from ..checkpoints.shape import Checkpoint, ModelShape
from ..checkpoints.sharding import Sharding
from ..checkpoints.stages import Stage
from ..errors import CorruptCheckpoint
from .decoder_weights import HEAD
from .gguf_loader import open_gguf
from .parts import RowsOfPiece
from .registry import model_family
from .tensors import StoredTensor

if TYPE_CHECKING:
    import torch

    from .collective import Collective
    from .protocol import CausalLM


def load_model(
    checkpoint: Checkpoint,
    shape: ModelShape,
    dtype: torch.dtype,
    device: torch.device,
    max_model_len: int,
    progress: Callable[[int, int], None] | None = None,
    collective: Collective | None = None,
    stage: Stage | None = None,
) -> CausalLM:
    """Read the weights into a model of `dtype` on `device` that takes positions below `max_model_len`; with a
    `collective` those of its rank, with a `stage` those of its layers.

    `progress` is called with (bytes read, bytes to read) as they are read. All names and shapes are checked before the
    first weight is. Beside the growing model only a few MiB are held at a time.
    Raises UnsupportedModel (architecture, tensor type) and CorruptCheckpoint (missing, unexpected, wrong, cut off).
    """
    family = model_family(shape.architecture)
    expected = family.tensor_shapes(shape)
    if collective is None and stage is None:
        pieces = read_pieces(checkpoint, shape, expected, progress, quantized=False)
        return family.from_pieces(shape, pieces, dtype, device, max_model_len)
    from .place import Place
    from .tensor_parallel import TensorParallel

    rank, size = (0, 1) if collective is None else (collective.rank, collective.size)
    sharding = Sharding(shape, size)
    pieces = read_shares(checkpoint, sharding, rank, expected, progress, stage)
    parallel = None if collective is None else TensorParallel(sharding, collective, device)
    local = sharding.local_shape if stage is None else stage.shape_of(sharding.local_shape)
    return family.from_pieces(local, pieces, dtype, device, max_model_len, Place(shape, parallel, stage))


def read_pieces(
    checkpoint: Checkpoint,
    shape: ModelShape,
    expected: dict[str, tuple[int, ...]],
    progress: Callable[[int, int], None] | None,
    *,
    quantized: bool,
) -> Iterator[tuple[str, int, RowsOfPiece]]:
    """(canonical name, first row, rows) of every tensor in `expected`, as `StoredTensor` gives them; all names
    and shapes are checked first. Errors as of `load_model`."""
    wanted = _match(_open(checkpoint, shape, expected), expected, shape, checkpoint.path)
    return _pieces(wanted, progress, quantized)


def read_shares(
    checkpoint: Checkpoint,
    sharding: Sharding,
    rank: int,
    expected: dict[str, tuple[int, ...]],
    progress: Callable[[int, int], None] | None,
    stage: Stage | None = None,
) -> Iterator[tuple[str, int, RowsOfPiece]]:
    """As `read_pieces`, of the share that a rank has of every tensor, or of those of its stage under the names that
    they have there: rows of tensors of `sharding.local_shape`."""
    shape = sharding.shape
    wanted = _match(_open(checkpoint, shape, expected), expected, shape, checkpoint.path)
    shares = [tensor.share(sharding.of_tensor(rank, tensor.name, tensor.shape)) for tensor in wanted]
    if stage is not None:
        named = [(stage.local_name(share.name, is_tied=shape.tie_word_embeddings), share) for share in shares]
        shares = [share._replace(name=name) for name, share in named if name is not None]
    return _pieces(shares, progress, quantized=False)


def _open(checkpoint: Checkpoint, shape: ModelShape, expected: dict[str, tuple[int, ...]]) -> dict[str, StoredTensor]:
    match checkpoint.format:
        case "gguf":
            return open_gguf(checkpoint.path, shape)
        case "safetensors":
            from .safetensors_loader import open_safetensors

            return open_safetensors(checkpoint.path)
        case "dummy":
            from .dummy_weights import open_dummy

            return open_dummy(expected)
        case _ as unknown:
            assert_never(unknown)


def _match(
    stored: dict[str, StoredTensor], expected: dict[str, tuple[int, ...]], shape: ModelShape, path: str
) -> list[StoredTensor]:
    """The stored tensors that the model wants; CorruptCheckpoint names what does not fit."""
    ignored = {HEAD} if shape.tie_word_embeddings else set()
    if shape.rope_factors:
        ignored.add(ROPE_FACTORS)  # the shape has them already
    for what, names in (
        ("has no tensor", expected.keys() - stored.keys()),
        ("has a tensor that the model does not know:", stored.keys() - expected.keys() - ignored),
    ):
        if names:
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CorruptCheckpoint(
                f"{path} {what} {', '.join(sorted(names)[:3])}{more}",
                advice="check that the files belong together and are complete",
            )
    for name, wanted_shape in expected.items():
        if stored[name].shape != wanted_shape:
            raise CorruptCheckpoint(
                f"{path}: {name} has shape {list(stored[name].shape)}, the model's configuration asks for"
                f" {list(wanted_shape)}",
                advice="check that weights and configuration belong together",
            )
    return [tensor for name, tensor in stored.items() if name in expected]


def _pieces(
    tensors: list[StoredTensor], progress: Callable[[int, int], None] | None, quantized: bool
) -> Iterator[tuple[str, int, RowsOfPiece]]:
    total = sum(tensor.num_bytes for tensor in tensors)
    done = 0
    for tensor in tensors:
        for first, rows in tensor.stored_pieces() if quantized else tensor.pieces():
            yield tensor.name, first, rows
            if progress is not None:
                progress(done + tensor.num_bytes * (first + len(rows)) // tensor.shape[0], total)
        done += tensor.num_bytes
