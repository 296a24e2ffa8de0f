"""What can happen to scheduler and twin, by name: each takes a world and a source of choices, and may do nothing."""

from __future__ import annotations

from collections.abc import Callable

from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.grammar import GrammarFailed, GrammarReady
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.sampling import RepetitionDetection
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.choices import Choices, between, one_of
from callboard.tests.scheduling.fake_model import next_token
from callboard.tests.scheduling.fake_rows import sampled_of
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.twin_request import FOR_INPUT, TwinRequest
from callboard.tests.scheduling.twin_world import GRAMMARS, World

TOKENIZERS = ("tokenizer.0", "tokenizer.1")
PREFIXES = ([], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [2] * 11)


def choose_limits(choices: Choices) -> SchedulerLimits:
    """A tiny engine."""
    return make_limits(
        max_num_seqs=between(choices, 1, 4),
        max_num_batched_tokens=one_of(choices, [64, 16, 5, 2, 1]),
        long_prefill_token_threshold=one_of(choices, [0, 0, 1, 4]),
        pipeline_depth=between(choices, 1, 3),
        watermark=one_of(choices, [0.0, 0.0, 0.2]),
        max_queued_requests=one_of(choices, [100, 100, 2]),
        max_queued_tokens=one_of(choices, [1000, 1000, 20]),
        num_blocks=between(choices, 2, 12),
        block_size=one_of(choices, [1, 2, 4]),
        prefix_caching=one_of(choices, [True, True, False]),
        max_model_len=one_of(choices, [30, 12]),
        max_plan_tokens=one_of(choices, [None, None, 8]),
        resume_grace_s=one_of(choices, [50e-9, 5e-9]),
        policy=one_of(choices, POLICIES),
        preemption=one_of(choices, ["lifo", "retract", "cost"]),
        admission=one_of(choices, ["chunk", "whole_prompt", "estimate"]),
        fair_aging_tokens_per_s=one_of(choices, [1000, 10**9, 0]),
        fair_aging_max_tokens=one_of(choices, [20_000, 10]),
    )


POLICIES = ("fcfs", "priority", "fair", "cache_aware")


def choose_admit(world: World, choices: Choices, request_id: str, choice: int) -> Admit:
    """A request; most of them ordinary."""
    prompt = one_of(choices, PREFIXES) + [between(choices, 1, 3) for _ in range(between(choices, 1, 5))]
    is_session = one_of(choices, [False] * 6 + [True])
    deadline_ns = world.now_ns + between(choices, -2, 60) if choices.below(8) == 7 else None
    return make_admit(
        request_id,
        prompt,
        choice=choice,
        max_tokens=between(choices, 1, 12),
        ignore_eos=one_of(choices, [True, False]),
        cache_salt=one_of(choices, ["", "", "", "salt"]),
        tokenizer=one_of(choices, TOKENIZERS),
        min_tokens=one_of(choices, [0, 0, 0, 1, 4]),
        stop_token_ids=one_of(choices, [(), (), (5,), (0, 7)]),
        logprobs=one_of(choices, [None, None, None, 1]),
        prompt_logprobs=None if is_session else one_of(choices, [None] * 7 + [1]),
        repetition_detection=one_of(choices, [None, None, None, RepetitionDetection(2), RepetitionDetection(3, 2, 2)]),
        priority=between(choices, -1, 1),
        arrival_ns=between(choices, 0, 3),
        tenant=one_of(choices, ["", "a", "b"]),
        deadline_ns=deadline_ns,
        grammar_key=one_of(choices, ["", "", "", "", "", *GRAMMARS]),
        num_remote_tokens=one_of(choices, [0, 0, 0, len(prompt), between(choices, 0, len(prompt))]),
        is_session=is_session,
    )


def admit(world: World, choices: Choices) -> None:
    """New requests together."""
    world.admit(*(choose_admit(world, choices, world.new_name(), 0) for _ in range(between(choices, 1, 3))))


def fork(world: World, choices: Choices) -> None:
    """One prompt, several answers."""
    name = world.new_name()
    first = choose_admit(world, choices, name, 0)
    others = [world.copy(first, name, choice) for choice in range(1, between(choices, 2, 3))]
    world.admit(first, *others)


def repeat(world: World, choices: Choices) -> None:
    """A prompt that came before, and often what was answered to it: blocks are shared, or found again."""
    if world.admits:
        before = one_of(choices, list(world.admits.values()))
        world.admit(world.copy(before, world.new_name(), 0))


def work(world: World, choices: Choices) -> None:
    if world.plans:
        world.work()


def deliver(world: World, choices: Choices) -> None:
    if world.results:
        world.deliver()


def run_steps(world: World, choices: Choices) -> None:
    for _ in range(between(choices, 1, 4)):
        work(world, choices)
        deliver(world, choices)


def guess(request: TwinRequest, known: list[int], choices: Choices) -> list[int]:
    """A proposer's guess at what comes behind the known tokens: more or less right."""
    num_right, num_wrong = between(choices, 0, 4), between(choices, 0, 2)
    guesses = list(known)
    for _ in range(num_right):
        guesses.append(next_token(guesses, request.key[1]))
    return [*guesses[len(known) :], *([1] * num_wrong)]


def draft(world: World, choices: Choices) -> None:
    """Guesses at any time, mostly behind the last known token."""
    drafts = Drafts([], [], [])
    for run, request in world.twin.state.request_of_run.items():
        drafts.runs.append(run)
        drafts.positions.append(len(request.tokens) + one_of(choices, [0] * 8 + [1, -1]))
        drafts.token_ids.append(guess(request, request.tokens, choices))
    world.call(drafts)


def deliver_and_draft(world: World, choices: Choices) -> None:
    """A result, and guesses at what follows it: in time if nothing else is in flight."""
    if not world.results:
        return
    result = world.results.popleft()
    drafts = Drafts([], [], [])
    for run, tokens in sampled_of(result):
        request = world.twin.state.request_of_run.get(run)
        if request is not None:
            known = request.tokens + tokens
            drafts.runs.append(run)
            drafts.positions.append(len(known))
            drafts.token_ids.append(guess(request, known, choices))
    world.call(result, drafts)


def settle_grammar(world: World, choices: Choices) -> None:
    """A grammar is ready, or is none."""
    key = one_of(choices, GRAMMARS)
    world.call(one_of(choices, [GrammarReady(key), GrammarReady(key), GrammarFailed(key, "it is none")]))


def answer_load(world: World, choices: Choices) -> None:
    """A transfer ends: with all, with a part, or with nothing."""
    if world.connector.loads:
        load = one_of(choices, list(world.connector.loads.values()))
        world.answer_load(load.transfer, one_of(choices, [load.num_tokens, between(choices, 0, load.num_tokens), 0]))


def add_input(world: World, choices: Choices) -> None:
    """A session's client says more."""
    paused = [key for key in world.open_sessions() if world.talks[key].is_paused]
    others = [key for key in world.open_sessions() if world.twin.state.live[key].state != FOR_INPUT]
    if paused or others:
        key = one_of(choices, others if not paused or (others and choices.below(5) == 4) else paused)
        token_ids = [between(choices, 1, 3) for _ in range(between(choices, 0, 4))]
        world.add_input(key, token_ids, is_last=one_of(choices, [False, False, True]))


def cut_turn(world: World, choices: Choices) -> None:
    """A stop string ends a session's turn, whose tokens its client has."""
    told = [key for key in world.open_sessions() if world.num_told_of_turn(key)]
    if told:
        key = one_of(choices, told)
        back = between(choices, 1, world.num_told_of_turn(key))
        world.cut_turn(key, len(world.clients[key].token_ids) - back)


def stop(world: World, choices: Choices) -> None:
    """A tokenizer stops one choice; an older attempt's Stop changes nothing."""
    keys = [key for key in world.live() if not world.clients[key].admit.is_session]
    if keys:
        key = one_of(choices, keys)
        client = world.clients[key]
        offset = between(choices, -1, 1)
        client.is_ended_here = offset >= 0
        world.call(Stop(key[0], key[1], client.attempt + offset, max(0, len(client.token_ids) - 1)))


def abort(world: World, choices: Choices) -> None:
    """A client goes away: every choice of the request ends."""
    if world.live():
        request_id = one_of(choices, world.live())[0]
        clients = [client for key, client in world.clients.items() if key[0] == request_id]
        for client in clients:
            client.is_ended_here |= client.finish is None
        world.call(Abort(request_id, max(client.attempt for client in clients), "client"))


def take_over(world: World, choices: Choices) -> None:
    """A newer attempt; then a late repeat of the old one, which is dropped."""
    if world.live():
        key = one_of(choices, world.live())
        world.resume(key, one_of(choices, TOKENIZERS))
        if key in world.twin.state.live:
            world.call(world.clients[key].admit)


def lose_tokenizer(world: World, choices: Choices) -> None:
    world.lose_tokenizer(one_of(choices, TOKENIZERS))


def block_or_unblock(world: World, choices: Choices) -> None:
    world.blocked ^= {one_of(choices, TOKENIZERS)}
    world.call()


def resume(world: World, choices: Choices) -> None:
    if world.orphans():
        world.resume(one_of(choices, world.orphans()), one_of(choices, TOKENIZERS))


def lose_worker(world: World, choices: Choices) -> None:
    """Unless it would look like somebody's fault."""
    if world.worker is None:
        world.attach()
    elif not any(request.num_deaths for step in world.twin.state.in_flight for request in step):
        world.lose_worker()


def wait(world: World, choices: Choices) -> None:
    """Time passes."""
    world.now_ns += between(choices, 1, 20)
    world.call()


Transition = Callable[[World, Choices], None]
WEIGHTS: dict[Transition, int] = {
    run_steps: 8,
    work: 8,
    deliver: 8,
    admit: 4,
    fork: 1,
    repeat: 2,
    draft: 2,
    deliver_and_draft: 6,
    settle_grammar: 1,
    answer_load: 2,
    add_input: 2,
    cut_turn: 1,
    stop: 1,
    abort: 1,
    take_over: 1,
    resume: 2,
    block_or_unblock: 1,
    lose_tokenizer: 1,
    lose_worker: 1,
    wait: 1,
}
TRANSITIONS: tuple[Transition, ...] = tuple(t for t, weight in WEIGHTS.items() for _ in range(weight))
"""Each as often as its weight, the simple ones first."""
