"""Where a model is and what it is: MODEL resolved to local files, and the shape read from them. No torch.

`resolve_checkpoint(source)` -> `Checkpoint`; `read_shape(checkpoint)` -> `ModelShape`; `read_gguf(path)` gives the
metadata and the tensor directory of a GGUF file to whoever needs more (the tokenizer, the loader).
"""

from .architectures import SUPPORTED_ARCHITECTURES
from .chat_template import read_chat_template
from .gguf_file import GGUFFile, GGUFTensor, gguf_metadata, read_gguf
from .progress import NoProgress, Progress
from .read_shape import read_shape
from .resolve import resolve_checkpoint
from .safetensors_files import SafetensorsTensor, read_safetensors_directory
from .shape import Checkpoint, ModelShape
from .special_ids import SpecialIds, read_special_ids

__all__ = [
    "SUPPORTED_ARCHITECTURES",
    "Checkpoint",
    "GGUFFile",
    "GGUFTensor",
    "ModelShape",
    "NoProgress",
    "Progress",
    "SafetensorsTensor",
    "SpecialIds",
    "gguf_metadata",
    "read_chat_template",
    "read_gguf",
    "read_safetensors_directory",
    "read_shape",
    "read_special_ids",
    "resolve_checkpoint",
]
