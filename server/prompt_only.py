"""`echo` with `max_tokens` 0: the engine is asked for one token, for it makes no fewer, and the answer has none."""

from __future__ import annotations

import msgspec

from ..actors.frontend_api import Delta
from ..mailbox.messages.requests import Finish


def without_output(delta: Delta) -> Delta:
    """What it says of the prompt, and its end, by length whatever the token was; what did not come to it stays so."""
    finish = delta.finish
    if finish is not None:
        is_whole = finish.reason not in ("abort", "error", "timeout")
        usage = msgspec.structs.replace(finish.usage, completion_tokens=0)
        finish = Finish("length", usage) if is_whole else msgspec.structs.replace(finish, usage=usage)
    return Delta(delta.choice, 0, [], "", finish, None, delta.prompt)
