"""`Engine` over the null device: real processes, started, used, killed and looked for when it has ended."""

from __future__ import annotations

import asyncio
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvloop

import callboard
from callboard.client import Engine
from callboard.client import engine as engine_module
from callboard.errors import CallboardError, ConfigError, InvalidRequest, StartFailed, StreamCut, Unauthorized
from callboard.tests.e2e.null_engine import Oracle, Remains, descendants, run_directories
from callboard.topology import topology_from

NULL = {"process.worker.device": "null", "process.worker.threads": 1}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, which must be empty at the end."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="session")
def oracle(null_model):
    return Oracle(null_model)


def remains(engine):
    return Remains(SimpleNamespace(pid=engine.pid))


def wait_ended(pidfd):
    ended = select.poll()
    ended.register(pidfd, select.POLLIN)
    ended.poll()
    os.close(pidfd)


def worker_pid(engine):
    return int(re.findall(r"process\.ready process=worker pid=(\d+)", engine.log())[-1])


def test_it_is_exported_by_the_package():
    assert callboard.Engine is Engine


@pytest.mark.slow
def test_importing_the_package_loads_nothing_heavy():
    script = (
        "import sys, callboard; heavy = {'torch', 'aiohttp', 'msgspec', 'rich', 'asyncio'} & sys.modules.keys(); "
        "assert not heavy, heavy; callboard.Engine; assert not {'torch', 'rich'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True)


@pytest.mark.slow
async def test_its_life(null_model, oracle, temporary):
    async with Engine(null_model, set=NULL) as engine:
        left = remains(engine)
        body = oracle.body(0, 50)
        deltas = [delta async for delta in engine.generate(body.pop("prompt"), **body)]
        assert "".join(delta.text for delta in deltas) == oracle.texts(0, 50)[0]
        assert deltas[-1].finish_reason == "length" and deltas[-1].usage.completion_tokens == 50
        answer = await engine.chat_whole([{"role": "user", "content": "hi"}], max_tokens=5, ignore_eos=True)
        assert len(answer.token_ids) == 5
        assert (await engine.client.models())[0].id and await engine.client.ready()

        prompts = [oracle.prompt(index) for index in range(200)]
        prompts[77] = [999_999]
        seen = []
        results = await engine.generate_all(
            prompts,
            each=[{"seed": index} for index in range(200)],
            progress=seen.append,
            max_tokens=20,
            ignore_eos=True,
        )
        assert isinstance(results[77].error, InvalidRequest)
        assert [r.text for r in results if r.index != 77] == [oracle.texts(i, 20)[0] for i in range(200) if i != 77]
        assert (seen[-1].num_done, seen[-1].num_failed, seen[-1].num_tokens) == (200, 1, 199 * 20)
        chats = await engine.chat_all([[{"role": "user", "content": c}] for c in "ab"], max_tokens=2, ignore_eos=True)
        assert [len(result.answer.token_ids) for result in chats] == [2, 2]

        body = oracle.body(1, 600)
        stream = engine.generate(body.pop("prompt"), **body)
        text = (await anext(stream)).text
        os.kill(worker_pid(engine), signal.SIGKILL)
        text += (await stream.answer()).text
        assert text == oracle.texts(1, 600)[0]
        left_after = remains(engine)
    left.wait_gone()
    left_after.wait_gone()
    with pytest.raises(CallboardError, match="does not run"):
        engine.generate("x")
    assert await engine.close() is None


@pytest.mark.slow
async def test_two_at_once_from_a_topology_and_from_a_file(null_model, oracle, temporary):
    """The first block ends well and drains, the second with an exception and aborts."""
    topology = topology_from(str(null_model), {key: str(value) for key, value in NULL.items()})
    folder = Path(tempfile.mkdtemp())
    file = folder / "engine.toml"
    file.write_text(f'[model]\nsource = "{null_model}"\nserved_name = "second"\n[server]\nport = 1\n')
    body = oracle.body(0, 400)
    with pytest.raises(ZeroDivisionError):
        async with Engine(file, set=NULL) as second:
            second_left = remains(second)
            async with Engine(topology) as first:
                left = remains(first)
                assert first.url != second.url and (await second.client.models())[0].id == "second"
                running = first.generate(body.pop("prompt"), **body)
                begun = await anext(running)
                drained = asyncio.create_task(running.answer())
                with pytest.raises(Unauthorized):
                    async with callboard.AsyncClient(first.url, "no key") as stranger:
                        await stranger.complete_whole("x")
            left.wait_gone()
            assert begun.text + (await drained).text == oracle.texts(0, 400)[0]
            stream = second.generate([300, 7], max_tokens=30_000, ignore_eos=True)
            await anext(stream)
            rest = asyncio.create_task(stream.answer())
            await asyncio.sleep(0)
            raise ZeroDivisionError
    with pytest.raises(StreamCut):
        await rest
    second_left.wait_gone()
    shutil.rmtree(folder)


@pytest.mark.slow
async def test_a_start_that_fails_says_what_the_screen_says(tmp_path, temporary):
    with pytest.raises(StartFailed, match="there is no file or directory '/nowhere/x'") as raised:
        await Engine("/nowhere/x").start()
    assert raised.value.phase == "model"
    with pytest.raises(StartFailed) as raised:
        async with Engine("/nowhere/y\n/z", set={"model.served_name": "a"}):
            pytest.fail("it started")
    assert "y\\n/z" in raised.value.cause


@pytest.mark.nightly
async def test_a_start_that_fails_in_a_child_has_phase_cause_and_advice(null_model, temporary):
    settings = {**NULL, "model.chat_template": "/nowhere/template"}
    with pytest.raises(StartFailed, match="template") as raised:
        await Engine(null_model, set=settings).start()
    assert raised.value.phase and raised.value.cause


def test_bad_overrides_are_told_before_anything_starts():
    with pytest.raises(ConfigError, match="max_num_seqs"):
        Engine("m", set={"scheduler.max_num_seq": 8})
    with pytest.raises(ConfigError, match="max_num_seqs"):
        Engine("m", set={"scheduler.max_num_seqs": 0})
    with pytest.raises(ConfigError, match=r"x\.toml"):
        Engine("/nowhere/x.toml")


async def test_an_engine_that_dies_in_its_start(null_model, temporary, monkeypatch):
    class Killed(engine_module.EngineProcess):
        def __init__(self, arguments):
            super().__init__(arguments)
            os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(engine_module, "EngineProcess", Killed)
    with pytest.raises(StartFailed, match="signal SIGKILL"):
        await Engine(null_model, set=NULL).start()


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["at once", "with children"])
async def test_a_cancelled_start_leaves_no_process(null_model, temporary, monkeypatch, moment):
    started = asyncio.Event()
    processes = []

    class Noted(engine_module.EngineProcess):
        def __init__(self, arguments):
            super().__init__(arguments)
            processes.append(self)
            started.set()

    monkeypatch.setattr(engine_module, "EngineProcess", Noted)
    task = asyncio.create_task(Engine(null_model, set=NULL).start())
    await started.wait()
    pid = processes[0].pid
    while moment == "with children" and len(descendants(pid)) < 3:
        await asyncio.sleep(0.01)  # between two looks at the processes
    pidfds = [os.pidfd_open(each) for each in descendants(pid)]
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pidfd in pidfds:
        wait_ended(pidfd)
    with pytest.raises(ChildProcessError):  # it was waited for
        os.waitpid(pid, 0)


SCRIPT = """
import asyncio, sys
from callboard import Engine

async def main():
    async with Engine(sys.argv[1], set={"process.worker.device": "null", "process.worker.threads": 1}) as engine:
        print(engine.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_it_ends_with_the_process_that_started_it(null_model, tmp_path, number):
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-P", "-c", SCRIPT, str(null_model)]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        engine_pid = int(parent.stdout.readline())
        left = Remains(SimpleNamespace(pid=engine_pid))
        parent.send_signal(number)
        parent.communicate()
    left.wait_gone()
    if number == signal.SIGINT:
        assert run_directories(tmp_path) == []


@pytest.mark.nightly
def test_another_loop_in_another_thread(null_model, oracle, temporary):
    async def use():
        async with Engine(null_model, set=NULL) as engine:
            body = oracle.body(3, 10)
            left.append(remains(engine))
            texts.append((await engine.generate_whole(body.pop("prompt"), **body)).text)

    def run():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(use())

    left, texts = [], []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert texts == [oracle.texts(3, 10)[0]]
    left[0].wait_gone()
