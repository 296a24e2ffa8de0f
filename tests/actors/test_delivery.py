"""What users rely on: whatever happens and in whatever order, each stream gets exactly its answer and one end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from callboard.actors.sender import Sender
from callboard.actors.tokenizer import TokenizerActor
from callboard.errors import ProtocolViolation, WouldBlock
from callboard.mailbox.messages.admission import TokenDeltas, TokenizerToScheduler
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.scheduling.request import Request
from callboard.scheduling.state import SchedulerState
from callboard.tests.actors.delivery_checks import check_at_rest
from callboard.tests.actors.delivery_world import World
from callboard.tests.scheduling.fake_worker import make_limits

REQUESTS = st.lists(
    st.builds(
        lambda prompt, max_tokens, stop, ignore_eos, logprobs, frontend, num_choices, returns_prompt: (
            prompt,
            SamplingParams(seed=1, max_tokens=max_tokens, stop=stop, ignore_eos=ignore_eos, logprobs=logprobs),
            frontend,
            num_choices,
            returns_prompt,
        ),
        # at most 16 tokens, so that with 16 more it fits the model's 32: é is two of them
        st.text("abc é", min_size=1, max_size=12).filter(lambda prompt: len(prompt.encode()) <= 16),
        st.integers(1, 16),
        st.lists(st.sampled_from(["a", "ab", "bca", "c ", "é", "bb"]), max_size=2).map(tuple),
        st.booleans(),
        st.sampled_from([None, None, 1]),
        st.integers(0, 1),
        st.sampled_from([1, 1, 2]),
        st.booleans(),
    ),
    min_size=1,
    max_size=8,
)
KINDS = ("submit", "turn", "deliver", "take", "follow", "start", "encode", "read", "work", "ring")
RARE_KINDS = ("close", "deadline", "kill", "pass_grace")
RARE = (0, 0.1, 0.5)
RUNS = dict(
    requests=REQUESTS,
    seed=st.integers(0, 1 << 32),
    num_acts=st.integers(0, 400),
    num_blocks=st.sampled_from([8, 10, 16, 40]),
    capacity=st.sampled_from([1, 2, 3, 1000]),
    max_queued_requests=st.sampled_from([0, 2, 1000, 1000]),
    num_frontends=st.integers(1, 2),
    num_deaths=st.integers(0, 3),
)
Request = tuple[str, SamplingParams, int, int, bool]


def run(
    requests: list[Request],
    seed: int,
    num_acts: int,
    num_blocks: int,
    capacity: int,
    max_queued_requests: int,
    num_frontends: int,
    num_deaths: int,
) -> None:
    """One engine from its first request to its rest. `seed` draws how eager each part is, then `num_acts` acts."""
    random = Random(seed)
    eagerness = {kind: random.choice((1, 4, 16)) for kind in KINDS} | {kind: random.choice(RARE) for kind in RARE_KINDS}

    async def main() -> None:
        limits = make_limits(
            max_num_seqs=4,
            max_num_batched_tokens=16,
            num_blocks=num_blocks,
            block_size=4,
            max_model_len=32,
            resume_grace_s=3600.0,
            max_queued_requests=max_queued_requests,
        )
        world = World(limits, capacity, num_frontends=num_frontends, num_deaths=num_deaths)
        try:
            coming = list(reversed(requests))
            for _ in range(num_acts):
                acts = world.possible(is_ending=False) + [("submit",)] * bool(coming)
                kinds = [act[0] for act in acts]
                (act,) = random.choices(acts, [eagerness[kind] / kinds.count(kind) for kind in kinds])
                if act[0] == "submit":
                    world.submit(*coming.pop())
                else:
                    await world.act(act)
            await world.finish()
            check_at_rest(world)
        finally:
            world.close()

    asyncio.run(main())


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(**RUNS)
def test_every_stream_gets_exactly_its_answer(**arguments: Any) -> None:
    run(**arguments)


# The property can fail: each of these faults is found ---------------------------------------------------------------


def takes_positions_it_has(patch: pytest.MonkeyPatch) -> None:
    """The tokenizer takes every delta for new."""
    take_row = TokenizerActor._take_row

    def faulty(self: TokenizerActor, deltas: TokenDeltas, row: int) -> None:
        state = self._states.get((deltas.request_ids[row], deltas.choices[row]))
        if state is not None:
            deltas.positions[row] = state.num_tokens
        take_row(self, deltas, row)

    patch.setattr(TokenizerActor, "_take_row", faulty)


def encodes_on_after_an_abort(patch: pytest.MonkeyPatch) -> None:
    abort = TokenizerActor._abort

    def faulty(self: TokenizerActor, message: Abort) -> None:
        encoding = self._encoding.get(message.request_id)
        abort(self, message)
        if encoding is not None:
            self._encoding[message.request_id] = encoding

    patch.setattr(TokenizerActor, "_abort", faulty)


def keeps_an_abort_to_itself(patch: pytest.MonkeyPatch) -> None:
    """The tokenizer ends the request and does not tell the scheduler."""
    post = Sender.post

    def faulty(self: Sender[TokenizerToScheduler], message: TokenizerToScheduler) -> None:
        if not (isinstance(message, Abort) and self._outbox._sender == "tokenizer"):  # type: ignore[attr-defined]
            post(self, message)

    patch.setattr(Sender, "post", faulty)


def reuses_run_numbers(patch: pytest.MonkeyPatch) -> None:
    start = SchedulerState.start

    def faulty(self: SchedulerState, request: Request) -> None:
        self._last_run = next(run for run in range(1000) if run + 1 not in self.running)
        start(self, request)

    patch.setattr(SchedulerState, "start", faulty)


def forgets_what_it_posts_when_there_is_room_again(patch: pytest.MonkeyPatch) -> None:
    async def faulty(self: Sender[Abort]) -> None:
        while self._kept:
            await self._outbox.wait_room()
            try:
                while self._kept:
                    self._outbox.send_nowait(self._kept[0])
                    self._kept.popleft()
            except WouldBlock:
                continue
        if self.on_room is not None:
            self.on_room()

    patch.setattr(Sender, "_drain", faulty)


def drops_what_finds_no_room(patch: pytest.MonkeyPatch) -> None:
    def faulty(self: Sender[Abort], message: Abort) -> None:
        try:
            self.send_nowait(message)
        except WouldBlock:
            return

    patch.setattr(Sender, "post", faulty)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        takes_positions_it_has,
        encodes_on_after_an_abort,
        keeps_an_abort_to_itself,
        reuses_run_numbers,
        forgets_what_it_posts_when_there_is_room_again,
        drops_what_finds_no_room,
    ],
)
def test_a_planted_fault_is_found(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)

    @settings(max_examples=1000, deadline=None, database=None, phases=[Phase.generate], report_multiple_bugs=False)
    @given(**RUNS)
    def prop(**arguments: Any) -> None:
        run(**arguments)

    with pytest.raises((AssertionError, ProtocolViolation)):
        prop()
