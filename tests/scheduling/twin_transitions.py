"""What can happen to scheduler and twin, by name: each takes a world and a source of choices, and may do nothing."""

from __future__ import annotations

from collections.abc import Callable

from callboard.mailbox.messages.admission import Admit, Stop
from callboard.mailbox.messages.drafts import Drafts
from callboard.mailbox.messages.grammar import GrammarFailed, GrammarReady, MatcherFailed
from callboard.mailbox.messages.requests import Abort
from callboard.mailbox.messages.sampling import RepetitionDetection
from callboard.scheduling.events import GrammarGone
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.scheduling.choices import Choices, between, one_of
from callboard.tests.scheduling.fake_model import next_token
from callboard.tests.scheduling.fake_rows import sampled_of
from callboard.tests.scheduling.fake_worker import make_admit, make_limits
from callboard.tests.scheduling.twin_request import FOR_INPUT, TwinRequest
from callboard.tests.scheduling.twin_world import GRAMMARS, World

TOKENIZERS = ("tokenizer.0", "tokenizer.1")
Transition = Callable[[World, Choices], None]
MAX_WAITING = 8
PREFIXES = ([], [1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [2] * 9)


def choose_limits(choices: Choices) -> SchedulerLimits:
    """A tiny engine, that holds 12 tokens at least; some are easily short of blocks, and some of budget."""
    block_size, least = one_of(choices, [(1, 12), (2, 6), (4, 3)])
    kind = one_of(choices, ["tight", "wide", "tight", "narrow"])
    is_tight, is_narrow = kind == "tight", kind == "narrow"
    rules = ["chunk"] if is_tight else ["chunk", "whole_prompt", "estimate"]
    return make_limits(
        max_num_seqs=between(choices, 1, 6),
        max_num_batched_tokens=one_of(choices, [3, 2, 1] if is_narrow else [64, 64, 16, 5]),
        long_prefill_token_threshold=0 if is_narrow else one_of(choices, [0, 0, 1, 4]),
        pipeline_depth=one_of(choices, [1, 1, 2, 3]),
        watermark=0.0 if is_tight else one_of(choices, [0.0, 0.2]),
        max_queued_requests=one_of(choices, [100, 100, 2]),
        max_queued_tokens=one_of(choices, [1000, 1000, 20]),
        num_blocks=between(choices, least, least + 3 if is_tight else 24),
        block_size=block_size,
        prefix_caching=one_of(choices, [True, True, False]),
        max_model_len=one_of(choices, [40, 40, 12]),
        max_plan_tokens=one_of(choices, [None, None, 8]),
        resume_grace_s=one_of(choices, [50e-9, 5e-9]),
        policy=one_of(choices, POLICIES),
        preemption=one_of(choices, ["lifo", "retract", "cost"]),
        admission=one_of(choices, rules),
        fair_aging_tokens_per_s=one_of(choices, [1000, 10**9, 0]),
        fair_aging_max_tokens=one_of(choices, [20_000, 10]),
        max_drafts=(max_drafts := one_of(choices, [0, 0, 1, 3])),
        has_constrained_drafts=max_drafts == 3,
    )


POLICIES = ("fcfs", "priority", "fair", "cache_aware")


def choose_admit(world: World, choices: Choices, request_id: str, choice: int) -> Admit:
    """A request; most of them ordinary."""
    prompt = one_of(choices, PREFIXES) + [between(choices, 1, 3) for _ in range(between(choices, 1, 5))]
    is_session = one_of(choices, [False] * 4 + [True])
    deadline_ns = world.now_ns + between(choices, -2, 60) if choices.below(8) == 7 else None
    return make_admit(
        request_id,
        prompt,
        choice=choice,
        max_tokens=one_of(choices, [between(choices, 1, 6), between(choices, 1, 20)]),
        ignore_eos=one_of(choices, [True, True, False]),
        cache_salt=one_of(choices, ["", "", "", "salt"]),
        tokenizer=one_of(choices, TOKENIZERS),
        min_tokens=one_of(choices, [0, 0, 0, 1, 4]),
        stop_token_ids=one_of(choices, [(), (), (), (), (5,), (0, 7)]),
        logprobs=one_of(choices, [None, None, None, 1]),
        prompt_logprobs=None if is_session else one_of(choices, [None] * 7 + [1]),
        repetition_detection=one_of(choices, [None] * 5 + [RepetitionDetection(2), RepetitionDetection(3, 2, 2)]),
        priority=between(choices, -1, 1),
        arrival_ns=between(choices, 0, 3),
        tenant=one_of(choices, ["", "a", "b"]),
        deadline_ns=deadline_ns,
        grammar_key=one_of(choices, ["", "", "", "", "", *GRAMMARS]),
        num_remote_tokens=one_of(choices, [0, 0, 0, len(prompt), between(choices, 0, len(prompt))]),
        is_session=is_session,
    )


def admit(world: World, choices: Choices) -> None:
    """New requests together; the first may be a bad one."""
    if choices.below(10) == 9:
        faults = one_of(choices, [world.raises, world.raises, world.kills])
        faults[f"r{world.num_named + 1}", 0] = between(choices, 0, 12)
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


def guess(request: TwinRequest, known: list[int], choices: Choices) -> list[int]:
    """A proposer's guess at what comes behind the known tokens: more or less right."""
    num_right, num_wrong = between(choices, 0, 4), between(choices, 0, 2)
    guesses = list(known)
    for _ in range(num_right):
        guesses.append(next_token(guesses, request.key[1]))
    return [*guesses[len(known) :], *([1] * num_wrong)]


def deliver(world: World, choices: Choices) -> None:
    """A result, alone or with guesses at what follows it: in time if nothing else is in flight."""
    if not world.results:
        return
    result, drafts = world.results.popleft(), Drafts([], [], [])
    if choices.below(2) == 0:
        world.call(result)
        return
    for run, tokens in sampled_of(result):
        request = world.twin.state.request_of_run.get(run)
        if request is not None:
            known = request.tokens + tokens
            drafts.runs.append(run)
            drafts.positions.append(len(known))
            drafts.token_ids.append(guess(request, known, choices))
    world.call(result, drafts)


def run_steps(world: World, choices: Choices) -> None:
    for _ in range(between(choices, 1, 4)):
        work(world, choices)
        deliver(world, choices)


def has_late_chance(world: World) -> bool:
    """At a depth over 1 a row stands between two of its steps only before its first token; then guesses are in time."""
    running = world.twin.state.running
    return world.limits.pipeline_depth > 1 and any(not r.num_pending and r.num_missing == 1 for r in running)


def draft(world: World, choices: Choices) -> None:
    """Guesses at any time, mostly behind the last known token."""
    drafts = Drafts([], [], [])
    for run, request in world.twin.state.request_of_run.items():
        drafts.runs.append(run)
        drafts.positions.append(len(request.tokens) + one_of(choices, [0] * 8 + [1, -1]))
        drafts.token_ids.append(guess(request, request.tokens, choices))
    world.call(drafts)


def settle_grammar(world: World, choices: Choices) -> None:
    """A grammar is ready, or is none, or the engine could not compile it."""
    key = one_of(choices, GRAMMARS)
    failed = GrammarFailed(key, "it is none")
    if key == GRAMMARS[0]:
        names = [name for (name, _), request in world.twin.state.live.items() if request.admit.grammar_key == key]
        failed = GrammarFailed(key, "nothing starts", 500, [*names[::2], "one that never came"])
    world.call(one_of(choices, [GrammarReady(key), GrammarReady(key), failed]))


def lose_grammars(world: World, choices: Choices) -> None:
    """The grammar actor dies."""
    world.call(GrammarGone())


def fail_matcher(world: World, choices: Choices) -> None:
    """A grammar became too large to follow; sometimes that is said of a run that is over, or of an earlier epoch."""
    runs = [run for run, request in world.twin.state.request_of_run.items() if request.admit.grammar_key]
    run = one_of(choices, runs) if runs else between(choices, 1, 3)
    world.call(MatcherFailed(world.epoch - (choices.below(4) == 3), run, "too large", (400, 500)[run % 2]))


def delay_masks(world: World, choices: Choices) -> None:
    """The next masks come too late."""
    if world.worker is not None:
        world.worker.num_to_be_late += between(choices, 1, 3)


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
    if world.worker is None:
        world.attach()
    else:
        world.lose_worker()


def fail_next(world: World, choices: Choices) -> None:
    """A step fails, and nobody is to blame."""
    if world.worker is not None:
        world.worker.num_to_fail = 1


def restore(world: World, choices: Choices) -> None:
    """Another scheduler goes on from a snapshot."""
    world.restore()


def wait(world: World, choices: Choices) -> None:
    """Time passes."""
    world.now_ns += between(choices, 1, 20)
    world.call()


def go_on(world: World, choices: Choices, transition: Transition) -> None:
    """The transition; if there is nothing that it could do, or enough waits already, the engine runs."""
    num_calls = world.num_calls
    if has_late_chance(world) and choices.below(2) == 1:
        draft(world, choices)
    elif transition not in (admit, fork, repeat) or len(world.twin.state.waiting()) < MAX_WAITING:
        transition(world, choices)
    if world.num_calls == num_calls:
        run_steps(world, choices)


WEIGHTS: dict[Transition, int] = {
    run_steps: 12,
    work: 8,
    deliver: 8,
    admit: 4,
    fork: 1,
    repeat: 2,
    draft: 5,
    settle_grammar: 3,
    lose_grammars: 1,
    delay_masks: 2,
    fail_matcher: 1,
    answer_load: 2,
    add_input: 2,
    cut_turn: 2,
    stop: 1,
    abort: 1,
    take_over: 2,
    resume: 2,
    block_or_unblock: 1,
    lose_tokenizer: 1,
    lose_worker: 1,
    fail_next: 1,
    wait: 1,
    restore: 1,
}
TRANSITIONS: tuple[Transition, ...] = tuple(t for t, weight in WEIGHTS.items() for _ in range(weight))
"""Each as often as its weight, the simple ones first."""
