"""Messages between the supervisor and its child processes, over one SOCK_SEQPACKET control socket a child.

| message     | sender     | receiver   | bound        | when the peer dies                                   |
|-------------|------------|------------|--------------|------------------------------------------------------|
| Start       | supervisor | child      | once         | -                                                    |
| Attach      | supervisor | scheduler  | once an epoch| -  (carries the new boards' file descriptors)         |
| Gone        | supervisor | neighbours | once a death | -                                                    |
| Drain       | supervisor | frontends  | once         | -                                                    |
| Shutdown    | supervisor | child      | once         | -                                                    |
| Ready       | child      | supervisor | once         | the supervisor has the child's pidfd                 |
| Failed      | child      | supervisor | once         | the supervisor has the child's pidfd                 |
| Drained     | frontend   | supervisor | once         | counts as drained                                    |

File descriptors travel beside `Start` and `Attach` as SCM_RIGHTS ancillary data, in the order of their `fds` lists.
A child ends at once with its supervisor (parent-death signal).
"""

from __future__ import annotations

import msgspec

from ...checkpoints.shape import Checkpoint, ModelShape
from ...shm_queue.layout import BoardLayout
from ...topology.schema import Topology


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One PUSH/PULL socket for an ordered pair of actors in different processes."""

    sender: str
    receiver: str
    path: str
    """Filesystem path of the ipc endpoint; the receiver gets the bound, listening socket as descriptor `link.<sender>`."""


class Start(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """Everything that a child process needs; sent once, first."""

    process: str
    incarnation: int
    actors: tuple[str, ...]
    """Names of the actors in this process: `frontend`, `tokenizer.1`, `worker`, ..."""
    all_actors: tuple[str, ...]
    topology: Topology
    checkpoint: Checkpoint
    shape: ModelShape
    num_blocks: int
    max_model_len: int
    links: tuple[Link, ...]
    boards: tuple[BoardLayout, ...]
    fds: tuple[str, ...]
    """Names of the descriptors that travel with this message, in order."""


class Attach(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """New boards for a new epoch; the receiver drops the old ones. Sent when the workers of the epoch are ready."""

    boards: tuple[BoardLayout, ...]
    fds: tuple[str, ...]


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """An actor died. A barrier: the receiver discards what the dead incarnation sent."""

    actor: str
    incarnation: int
    reason: str
    is_final: bool
    """The actor will not come back and the engine is ending: streams end with an error event."""


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """Take no new requests; end those that run at the deadline; then answer `Drained`."""

    timeout_s: float


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag=44):
    """Stop the actors and exit with status 0."""


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=50):
    """All actors of the process serve."""

    process: str
    incarnation: int
    phases: tuple[tuple[str, float], ...]
    """(phase, seconds) of the start."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=51):
    """The start failed, or an actor died of `cause`; the process exits right after."""

    process: str
    actor: str
    phase: str
    cause: str
    advice: str


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=52):
    """The frontends of this process hold no request any more."""

    process: str


SupervisorToChild = Start | Attach | Gone | Drain | Shutdown
ChildToSupervisor = Ready | Failed | Drained
