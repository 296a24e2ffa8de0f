"""Constraints that are too much work, in real processes that real limits end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys

import pytest

from callboard.actors import compile_pool, sandbox_process
from callboard.actors.compile_pool import CompilePool
from callboard.actors.sandbox_process import sandbox_command
from callboard.errors import EngineFailure, GrammarRefused
from callboard.mailbox.messages.grammar import ChoiceFormat, Constraint, GrammarFormat, JsonFormat, RegexFormat
from callboard.structured_output.sandbox_messages import Check, Setup, frame, read_frame


def schema(value) -> Constraint:
    return Constraint(JsonFormat(json.dumps(value)))


CHEAP = schema({"type": "object", "properties": {"a": {"type": "integer"}}})
PROCESSOR_BOMB = schema({"type": "integer", "multipleOf": 999_983})
"""A machine with as many states."""
MEMORY_BYTES = 1 << 30


@pytest.fixture(autouse=True)
def short_rests(monkeypatch):
    """However busy the machine is."""
    monkeypatch.setattr(sandbox_process, "REST_S", 0.0)


@pytest.fixture
async def make_pool(byte_vocabulary):
    """Makes pools that are closed at the end, whose processes must all be gone then."""
    pools = []

    def make(processor_s=30.0, num_processes=1, memory_bytes=MEMORY_BYTES, command=None):
        setup = Setup("llguidance", byte_vocabulary, processor_s, memory_bytes)
        pools.append(CompilePool(setup, num_processes, command))
        return pools[-1]

    yield make
    for pool in pools:
        pids = pids_of(pool)
        await pool.close()
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def pids_of(pool: CompilePool) -> list[int]:
    return [sandbox._process.pid for sandbox in pool._sandboxes if sandbox._process is not None]


def state_of(pid: int) -> str:
    """R, S, T (stopped), Z, ..."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


async def fork_of(pool: CompilePool) -> int:
    """The process that makes the next check of the only sandbox, once it is there."""
    while pool._idle.empty():
        await asyncio.sleep(0.001)
    (sandbox,) = pool._sandboxes
    return sandbox._fork


async def test_what_compiles_passes_and_what_does_not_is_refused_with_its_sentence(make_pool):
    pool = make_pool()
    await pool.check(CHEAP)
    (pid,) = pids_of(pool)
    with pytest.raises(GrammarRefused, match="uniqueItems") as caught:
        await pool.check(schema({"uniqueItems": True}))
    assert caught.value.status == 400
    await pool.check(CHEAP)
    assert pids_of(pool) == [pid] and pool.statistics().num_killed == 0


async def test_what_forks_has_one_thread(make_pool):
    """Another could hold a lock, which nobody would ever give back in the fork."""
    pool = make_pool()
    await pool.check(CHEAP)
    await fork_of(pool)
    (pid,) = pids_of(pool)
    assert len(os.listdir(f"/proc/{pid}/task")) == 1


@pytest.mark.slow
async def test_too_much_processor_time_ends_the_fork_alone(make_pool):
    pool = make_pool(processor_s=0.5)
    pool.start()
    fork = await fork_of(pool)
    (pid,) = pids_of(pool)
    with pytest.raises(GrammarRefused, match=r"more than 0\.5 s of processor time"):
        await pool.check(PROCESSOR_BOMB)
    with pytest.raises(ProcessLookupError):
        os.kill(fork, 0)
    await pool.check(CHEAP)
    assert pids_of(pool) == [pid] and pool.statistics().num_killed == 1


@pytest.mark.slow
async def test_too_much_memory_ends_the_fork_alone(make_pool):
    pool = make_pool(memory_bytes=1 << 20)
    pool.start()
    await fork_of(pool)
    (pid,) = pids_of(pool)
    with pytest.raises(GrammarRefused, match="more than 1,048,576 bytes of memory"):
        await pool.check(Constraint(ChoiceFormat(tuple(f"text number {i}" for i in range(20_000)))))
    await fork_of(pool)
    assert pids_of(pool) == [pid] and pool.statistics().num_killed == 1


BOMBS = [
    schema({"type": "array", "items": {"type": "integer"}, "minItems": 10**7}),
    schema({"type": "array", "minItems": 5000, "items": {"type": "array", "minItems": 5000}}),
    Constraint(RegexFormat("a{1,100000}")),
    Constraint(RegexFormat("((a{1,100}){1,100}){1,100}")),
    Constraint(RegexFormat("(((((a?){100}){100}){100}){100}b)")),
    Constraint(RegexFormat("(((a*)*)*)*b")),
    Constraint(RegexFormat("(a|b)*a(a|b){200}")),
    Constraint(RegexFormat(r"(\p{L}{1,1000}|\p{N}){1,1000}")),
    schema({"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(6)]} for i in range(8)]}),
    schema(
        {
            "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)} | {"d30": {}},
            "$ref": "#/$defs/d0",
        }
    ),
    schema({"type": "string", "maxLength": 10**9}),
    schema({"type": "string", "minLength": 10**8}),
    Constraint(GrammarFormat('start: a\na: a a | "x"')),
    Constraint(GrammarFormat("start: " + "(" * 3000)),
    Constraint(GrammarFormat("root ::= " + "(" * 3000)),
    Constraint(RegexFormat("(" * 3000)),
    Constraint(JsonFormat('{"items":' * 3000)),
    Constraint(RegexFormat("a" * 100_000)),
    PROCESSOR_BOMB,
]


@pytest.mark.slow
async def test_bombs_are_refused_or_are_none(make_pool):
    """Whatever it is, the pool answers and takes the next one."""
    pool = make_pool(processor_s=1.0)
    for constraint in BOMBS:
        try:
            await pool.check(constraint)
        except GrammarRefused as refused:
            assert 10 < len(refused.message) < 600
        await pool.check(CHEAP)
    assert pool.statistics().num_killed >= 1


@pytest.mark.slow
async def test_a_cheap_check_does_not_wait_for_an_expensive_one(make_pool, monkeypatch):
    monkeypatch.setattr(compile_pool, "MOMENT_S", 0.01)
    pool = make_pool(processor_s=20.0)
    await pool.check(CHEAP)
    bomb = asyncio.ensure_future(pool.check(PROCESSOR_BOMB))
    while not (slow_ones := [sandbox for sandbox in pool._sandboxes if sandbox.has_low_priority]):
        await asyncio.sleep(0)
    (slow,) = slow_ones
    assert os.sched_getscheduler(slow._fork) == os.SCHED_IDLE
    await pool.check(CHEAP)
    assert not bomb.done()
    bomb.cancel()
    await pool.check(CHEAP)


@pytest.mark.slow
async def test_a_slow_check_rests_while_it_has_no_core_to_itself(make_pool, monkeypatch):
    """Others run on all cores: it does next to nothing, and ends when they have."""
    monkeypatch.setattr(sandbox_process, "REST_S", 0.3)
    monkeypatch.setattr(compile_pool, "MOMENT_S", 0.01)
    pool = make_pool(processor_s=1.0)
    pool.start()
    fork = await fork_of(pool)
    code = "print(flush=True)\nwhile True: pass"
    others = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=subprocess.PIPE)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        for other in others:
            await other.stdout.readline()
        bomb = asyncio.ensure_future(pool.check(PROCESSOR_BOMB))
        async with asyncio.timeout(60):
            for _ in range(2):
                while state_of(fork) != "T":
                    await asyncio.sleep(0.001)
                while state_of(fork) == "T":
                    await asyncio.sleep(0.001)
        assert not bomb.done()
    finally:
        for other in others:
            other.kill()
            await other.wait()
    with pytest.raises(GrammarRefused, match="processor time"):
        await bomb


@pytest.mark.slow
async def test_a_slow_check_that_rests_is_given_up_at_once(make_pool, monkeypatch):
    monkeypatch.setattr(compile_pool, "MOMENT_S", 0.01)
    monkeypatch.setattr(sandbox_process, "REST_S", 600.0)
    pool = make_pool()
    pool.start()
    fork = await fork_of(pool)
    monkeypatch.setattr(sandbox_process, "_processor_s", lambda pid: 0.0)
    bomb = asyncio.ensure_future(pool.check(PROCESSOR_BOMB))
    while state_of(fork) != "T":
        await asyncio.sleep(0.001)
    bomb.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bomb
    await pool.check(CHEAP)
    with pytest.raises(ProcessLookupError):
        os.kill(fork, 0)


@pytest.mark.slow
async def test_a_check_that_makes_progress_may_take_as_long_as_it_wants(make_pool, monkeypatch):
    monkeypatch.setattr(compile_pool, "SILENCE_S", 1.0)
    with pytest.raises(GrammarRefused, match=r"more than 2\.5 s of processor time"):
        await make_pool(processor_s=2.5).check(PROCESSOR_BOMB)


@pytest.mark.slow
async def test_a_check_that_makes_none_is_ended(make_pool, monkeypatch):
    monkeypatch.setattr(compile_pool, "MOMENT_S", 0.01)
    monkeypatch.setattr(compile_pool, "SILENCE_S", 0.1)
    monkeypatch.setattr(sandbox_process, "REST_S", 600.0)
    pool = make_pool()
    pool.start()
    await fork_of(pool)
    monkeypatch.setattr(sandbox_process, "_processor_s", lambda pid: 0.0)
    with pytest.raises(GrammarRefused, match="no processor time for"):
        await pool.check(PROCESSOR_BOMB)


@pytest.mark.slow
async def test_a_cheap_check_does_not_wait_for_many_expensive_ones(make_pool, monkeypatch):
    """More than may be slow at once."""
    monkeypatch.setattr(compile_pool, "MOMENT_S", 0.05)
    monkeypatch.setattr(compile_pool, "PATIENCE_S", 0.3)
    pool = make_pool(processor_s=20.0)
    await pool.check(CHEAP)
    bombs = [asyncio.ensure_future(pool.check(PROCESSOR_BOMB)) for _ in range(4)]
    while not any(sandbox.has_low_priority for sandbox in pool._sandboxes):
        await asyncio.sleep(0)
    await pool.check(CHEAP)
    assert not any(bomb.done() for bomb in bombs)
    assert sum(sandbox.has_low_priority for sandbox in pool._sandboxes) == 1
    for bomb in bombs:
        bomb.cancel()
    await asyncio.gather(*bombs, return_exceptions=True)


@pytest.mark.slow
async def test_an_expensive_check_that_has_to_wait_is_made_in_the_end(make_pool, monkeypatch):
    monkeypatch.setattr(compile_pool, "MOMENT_S", 0.05)
    monkeypatch.setattr(compile_pool, "PATIENCE_S", 0.3)
    pool = make_pool(processor_s=0.5)
    await pool.check(CHEAP)
    refusals = await asyncio.gather(*(pool.check(PROCESSOR_BOMB) for _ in range(3)), return_exceptions=True)
    assert all("processor time" in str(refusal) for refusal in refusals)
    await pool.check(CHEAP)


@pytest.mark.parametrize("is_fork", [True, False])
async def test_a_process_that_is_killed_from_outside_says_nothing_about_the_grammar(make_pool, is_fork):
    """As by the kernel where memory is short: another process tells what becomes of it."""
    pool = make_pool()
    pool.start()
    for constraint, refusal in ((CHEAP, None), (schema({"uniqueItems": True}), "uniqueItems")):
        fork = await fork_of(pool)
        (pid,) = pids_of(pool)
        killed = fork if is_fork else pid
        os.kill(killed, signal.SIGSTOP)
        check = asyncio.ensure_future(pool.check(constraint))
        while not pool._idle.empty():
            await asyncio.sleep(0)
        os.kill(killed, signal.SIGKILL)
        if refusal is None:
            await check
        else:
            with pytest.raises(GrammarRefused, match=refusal):
                await check
        assert (pids_of(pool) == [pid]) == is_fork
    await pool.check(CHEAP)
    assert pool.statistics().num_killed == 0


async def test_a_fork_that_is_killed_while_it_waits_is_no_loss(make_pool):
    pool = make_pool()
    pool.start()
    os.kill(await fork_of(pool), signal.SIGKILL)
    await pool.check(CHEAP)
    assert pool.statistics().num_killed == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_fork", [True, False])
async def test_processes_that_are_killed_again_and_again_are_no_fault_of_the_request(make_pool, is_fork):
    pool = make_pool()
    await pool.check(CHEAP)
    check = asyncio.ensure_future(pool.check(PROCESSOR_BOMB))
    killed: set[int] = set()
    while not check.done():
        pids = {sandbox._fork for sandbox in pool._sandboxes} - {0} if is_fork else set(pids_of(pool))
        for pid in pids - killed:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        await asyncio.sleep(0)
    with pytest.raises(EngineFailure):
        await check
    assert len(killed) >= 2
    await pool.check(CHEAP)


@pytest.mark.slow
@pytest.mark.parametrize("moment_s", [0.05, 60.0])
async def test_who_gives_up_takes_the_fork_along(make_pool, monkeypatch, moment_s):
    """While its check is a slow one, and while nobody knows that."""
    monkeypatch.setattr(compile_pool, "MOMENT_S", moment_s)
    pool = make_pool()
    pool.start()
    fork = await fork_of(pool)
    pids = pids_of(pool)
    bomb = asyncio.ensure_future(pool.check(PROCESSOR_BOMB))
    is_slow = moment_s < 1.0
    while not pool._idle.empty() or (is_slow and not any(sandbox.has_low_priority for sandbox in pool._sandboxes)):
        await asyncio.sleep(0)
    bomb.cancel()
    with pytest.raises(asyncio.CancelledError):
        await bomb
    with pytest.raises(ProcessLookupError):
        os.kill(fork, 0)
    await pool.check(CHEAP)
    assert set(pids) <= set(pids_of(pool))


async def test_a_process_that_cannot_start_is_said(make_pool):
    for command in (["/nonexistent"], [sys.executable, "-c", ""]):
        with pytest.raises(EngineFailure, match="no process starts"):
            await make_pool(command=command).check(CHEAP)


@pytest.mark.slow
async def test_many_at_once(make_pool):
    pool = make_pool(num_processes=2)
    checks = [pool.check(CHEAP if i % 3 else schema({"not": {}})) for i in range(30)]
    results = await asyncio.gather(*checks, return_exceptions=True)
    assert [isinstance(result, GrammarRefused) for result in results] == [i % 3 == 0 for i in range(30)]
    assert pool.statistics().num_processes <= 4  # with the slow ones


def test_a_process_ends_with_its_owner(byte_vocabulary):
    """The owner is killed; what is left of it is the pipe's end."""
    source = (
        "import subprocess, sys, time\n"
        "from callboard.actors.sandbox_process import sandbox_command\n"
        "child = subprocess.Popen(sandbox_command(), stdin=0, stdout=1)\n"
        "time.sleep(600)\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-P", "-c", source], stdin=pipe, stdout=pipe) as owner:
        owner.stdin.write(frame(Setup("llguidance", byte_vocabulary, 600.0, 1 << 30)))
        owner.stdin.write(frame(Check(PROCESSOR_BOMB)))
        owner.stdin.flush()
        assert read_frame(owner.stdout) is not None  # it is ready, and next it works on the bomb
        owner.kill()
        assert owner.stdout.read() == b""  # nobody holds the other end any more


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("actors.sandbox", ("torch", "tokenizers", "transformers", "xgrammar")),
        ("actors.cast", ("llguidance", "callboard.structured_output.llguidance_backend", "xgrammar")),
        ("cli.main", ("llguidance", "callboard.structured_output.backend")),
    ],
)
def test_nobody_loads_what_it_does_not_need(module, unwanted):
    code = f"import sys, callboard.{module}; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_names_modules_that_are_there():
    assert sandbox_command()[2:5] == ["-m", "callboard.actors.parent_death", str(os.getpid())]
