"""Tasks that go on although their owner has ended are named by owner and event, cancelled and counted."""

from __future__ import annotations

import asyncio

import pytest

from callboard.actors.faults import Faults
from callboard.actors.task_register import (
    GRACE_S,
    MAX_LOGGED,
    TaskRegister,
    running_tasks,
    start_task,
    tell_leaked_tasks,
)
from callboard.mailbox.messages.requests import TextPrompt
from callboard.server.prompt_streams import PromptStreams
from callboard.tests.server.fake_frontend import FakeFrontend


async def for_ever() -> None:
    await asyncio.Event().wait()


async def test_a_task_without_an_owner_is_named_once_its_grace_is_over_and_cancelled() -> None:
    register = TaskRegister()
    owned = {"a": True}
    task = register.start(for_ever(), owner="a", event="reading", is_owned=lambda: owned["a"])
    other = register.start(for_ever(), owner="b", event="reading", is_owned=lambda: True)
    start_s = asyncio.get_running_loop().time()
    assert register.check(start_s + 100) == []
    owned["a"] = False
    assert register.check(start_s + 101) == []
    assert register.check(start_s + 101 + GRACE_S / 2) == []
    (leak,) = register.check(start_s + 101 + GRACE_S)
    assert (leak.owner, leak.event) == ("a", "reading")
    assert leak.age_s == pytest.approx(101 + GRACE_S, abs=1.0)
    assert register.check(start_s + 1000) == []
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (register.statistics().num_tasks, register.statistics().num_leaks) == (1, 1)
    other.cancel()


async def test_a_task_that_ends_with_its_owner_is_no_leak() -> None:
    register = TaskRegister()
    owned = True
    task = register.start(for_ever(), owner="a", event="reading", is_owned=lambda: owned)
    owned = False
    assert register.check(0.0) == []
    task.cancel()
    await asyncio.wait({task})
    assert register.check(1000.0) == []
    assert register.statistics().num_tasks == register.statistics().num_leaks == 0


async def test_what_an_actor_started_is_to_end_with_it() -> None:
    faults = Faults("tokenizer0")
    reached = asyncio.Event()

    async def deaf() -> None:
        while not reached.is_set():
            try:
                await reached.wait()
            except asyncio.CancelledError:
                continue

    task = faults.start(deaf())
    await asyncio.sleep(0)
    assert named(1000.0) == []
    faults.cancel()
    named(1000.0)
    (leak,) = named(1000.0 + GRACE_S)
    assert leak[0] == "tokenizer0" and leak[1].endswith("deaf")
    reached.set()
    await task


def named(now_s: float) -> list[tuple[str, str]]:
    """Leaks of this loop, its clock set to `now_s` seconds from any start of a test."""
    return [(leak.owner, leak.event) for leak in running_tasks().check(1e9 + now_s)]


async def test_readers_of_prompts_that_a_stream_forgets_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    frontend = FakeFrontend(lambda stream: None)
    streams = [frontend.submit(f"r-{index}", TextPrompt("a"), None) for index in range(2)]
    merged = PromptStreams("r", streams, 1)
    readers, merged._readers = merged._readers, []  # the plant: `close` does not know them any more
    for stream in streams:
        monkeypatch.setattr(stream, "close", lambda: None)
    merged.close()
    assert named(0.0) == []
    assert named(GRACE_S) == [("r", "reading prompt 0"), ("r", "reading prompt 1")]
    await asyncio.wait(readers)


async def test_each_leak_is_a_line_of_the_log_within_bounds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("callboard.actors.task_register.GRACE_S", 0.0)
    tasks = [
        start_task(for_ever(), owner=f"r{index}", event="reading", is_owned=lambda: False)
        for index in range(MAX_LOGGED + 5)
    ]
    tell_leaked_tasks()
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == MAX_LOGGED + 1
    assert "process.task_leaked owner=r0 task=reading age_s=0.0" in lines[0]
    assert f"process.tasks_leaked num_tasks={MAX_LOGGED + 5} shown={MAX_LOGGED}" in lines[-1]
    tell_leaked_tasks()
    assert capsys.readouterr().err == ""
    await asyncio.wait(tasks)
