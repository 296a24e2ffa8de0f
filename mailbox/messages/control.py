"""Messages between the supervisor and its child processes, over one SOCK_SEQPACKET control socket a child.

| message     | sender     | receiver            | bound        | when the peer dies                            |
|-------------|------------|---------------------|--------------|-----------------------------------------------|
| Start       | supervisor | child               | once         | -                                             |
| Attach      | supervisor | scheduler, worker   | once an epoch| -                                             |
| Gone        | supervisor | neighbours          | once a death | it counts as parted                           |
| Settled     | supervisor | frontends           | once a death | -                                             |
| Ending      | supervisor | child               | once         | -                                             |
| Drain       | supervisor | frontends           | twice        | -                                             |
| Shutdown    | supervisor | child               | once         | -                                             |
| Ready       | child      | supervisor          | once         | the supervisor has the child's pidfd          |
| Parted      | child      | supervisor          | once a death | the supervisor has the child's pidfd          |
| Failed      | child      | supervisor          | once         | the supervisor has the child's pidfd          |
| Drained     | frontend   | supervisor          | once         | counts as drained                             |

A death goes in this order, so that nothing of the dead incarnation is taken for its successor's: every neighbour gets
`Gone` with new links, parts, and answers `Parted`; when all have, the frontends get `Settled` and resume.
File descriptors travel beside `Start`, `Attach` and `Gone` as SCM_RIGHTS ancillary data, in the order of their `fds` lists.
A child ends at once with its supervisor (parent-death signal).
"""

from __future__ import annotations

import msgspec

from ...checkpoints.shape import Checkpoint, DraftCheckpoint, ModelShape
from ...shm_queue.layout import BoardLayout
from ...shm_queue.rank_region import RankRegionLayout
from ...topology.schema import Topology


class Link(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One PUSH/PULL socket for an ordered pair of actors in different processes."""

    sender: str
    receiver: str
    path: str
    """Filesystem path of the ipc endpoint; the receiver gets the bound, listening socket as descriptor
    `link.<sender>.<receiver>`."""


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
    """Of the KV pool; 0: the worker measures what its device has room for, and says so when it is ready."""
    max_model_len: int
    links: tuple[Link, ...]
    boards: tuple[BoardLayout, ...]
    fds: tuple[str, ...]
    """Names of the descriptors that travel with this message, in order."""
    ranks: RankRegionLayout | None = None
    """Of a rank among several of a stage: what they exchange tensors through, as descriptor `ranks`."""
    stage_boards: tuple[BoardLayout, ...] = ()
    """Of a rank where there are several stages: all boards between them; it gets the descriptors of its own."""
    draft: DraftCheckpoint | None = None
    """What [speculative] model is."""


class Attach(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """New boards for a new epoch; the receiver drops the old ones. The scheduler gets it when the workers are ready."""

    boards: tuple[BoardLayout, ...]
    fds: tuple[str, ...]


class Gone(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """A process died, with all its actors. The receiver drops the links with them and what it has not read from them,
    takes the new links to their successors, and answers `Parted`."""

    process: str
    incarnation: int
    actors: tuple[str, ...]
    links: tuple[Link, ...]
    """Those between the receiver's actors and the successors."""
    fds: tuple[str, ...]


class Settled(msgspec.Struct, frozen=True, array_like=True, tag=45):
    """All neighbours have parted from these actors' dead incarnation: requests that were with them are resumed."""

    actors: tuple[str, ...]
    has_served: bool
    """The incarnation that died was ready: what its actors held may have been what it died of."""
    suspects: tuple[int, ...]
    """Marks (`mark_of`) of the requests that its tokenizers had in hand when it died."""


class Ending(msgspec.Struct, frozen=True, array_like=True, tag=46):
    """The engine cannot go on: live streams end with an error event, nothing new is taken."""

    reason: str


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
    num_blocks: int = 0
    """Of the pool that a worker has measured; 0: of any other process."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=51):
    """The start failed, or an actor died of `cause`; the process exits right after."""

    process: str
    actor: str
    phase: str
    cause: str
    advice: str


class Parted(msgspec.Struct, frozen=True, array_like=True, tag=53):
    """This process has parted from the dead `incarnation` of process `gone`."""

    process: str
    gone: str
    incarnation: int


class Drained(msgspec.Struct, frozen=True, array_like=True, tag=52):
    """The frontends of this process hold no request any more."""

    process: str


SupervisorToChild = Start | Attach | Gone | Settled | Ending | Drain | Shutdown
ChildToSupervisor = Ready | Parted | Failed | Drained
