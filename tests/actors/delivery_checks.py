"""What must hold in a `World`: after every act, and when it has come to rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from callboard.actors.frontend import Frontend
from callboard.actors.scheduler import SchedulerActor
from callboard.actors.sender import Sender
from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.requests import Abort, Generate, Resume

if TYPE_CHECKING:
    from callboard.tests.actors.delivery_world import World


def sender_maps(actor: Any) -> list[Mapping[str, Sender[Any]]]:
    """The actor's senders, by receiver."""
    if isinstance(actor, Frontend | SchedulerActor):
        return [actor._tokenizers]
    return [actor._schedulers, actor._frontends]


def messages_under_way(world: World) -> Iterator[Any]:
    """Everything sent and not handled yet that somebody living may still read."""
    for wire in world.wires.values():
        yield from wire.messages
    for actor in world.living(*world.frontends, *world.tokenizers, "scheduler"):
        for _, message in actor.inbox._waiting:
            yield message
        for senders in sender_maps(actor):
            for sender in senders.values():
                yield from sender._kept


def requests_under_way(world: World) -> set[str]:
    """Requests that some message, encoding or unfinished death will still change in the scheduler."""
    ids: set[str] = set()
    for message in messages_under_way(world):
        match message:
            case Generate() | Abort() | Admit() | Stop():
                ids.add(message.request_id)
            case Resume():
                ids.add(message.generate.request_id)
    for tokenizer in world.living(*world.tokenizers):
        ids.update(tokenizer._encoding)
    return ids


def check_no_orphans(world: World) -> None:
    """The scheduler works for no request that nothing under way can end or deliver."""
    if world.scheduler is None or world.deaths or any(place.control for place in world.places.values()):
        return
    requests = list(world.scheduler._state.requests())
    if not requests:
        return
    readers = {reader.request_id: reader for reader in world.readers}
    orphans = [
        request
        for request in requests
        if readers[request.key[0]].is_unwanted and (request.key, request.attempt) not in world.doomed
    ]
    if orphans:
        busy = requests_under_way(world)
        left = [request.key for request in orphans if request.key[0] not in busy]
        assert not left, f"orphans: nothing under way can end {left}"


def check_at_rest(world: World) -> None:
    """Every stream got exactly its answer, nothing is held anywhere."""
    for name in world.frontends:
        frontend = world.places[name].actor
        assert frontend.num_live_requests() == 0
    for name in world.tokenizers:
        tokenizer = world.places[name].actor
        assert not tokenizer._states and not tokenizer._encoding, f"{name} holds requests"
        assert not tokenizer._unsent._rows
    for actor in world.living(*world.frontends, *world.tokenizers, "scheduler"):
        for senders in sender_maps(actor):
            assert not any(sender.is_blocked for sender in senders.values())
    scheduler = world.scheduler
    assert scheduler is not None
    statistics = scheduler.statistics()
    assert statistics.num_running == statistics.num_waiting == statistics.num_waiting_tokens == 0
    assert statistics.num_free_blocks == world.limits.num_blocks
    assert scheduler.check_integrity() == [] and scheduler.statistics().num_leaks == 0
    for reader in world.readers:
        reader.check(world.admits, world.limits, world.excuse, bool(world.died))
