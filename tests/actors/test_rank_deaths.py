"""Deaths around a worker of several ranks: the ranks share one fate; a scheduler's death leaves them their weights."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import aiohttp
import pytest

from callboard.actors.supervisor import Supervisor
from callboard.shm_queue import Phase
from callboard.tests.actors.test_deaths import NEVER, Answer, apart
from callboard.tests.actors.test_engine_life import complete, live, pids, serve

pytestmark = pytest.mark.slow

SHORT = {**NEVER, "max_tokens": 50}
RANKS = ("worker.0", "worker.1")
TWO_STAGES = ("process.worker.pipeline_parallel=2", "process.worker.device=cpu")
TWO_RANKS = ("process.worker.tensor_parallel=2", "process.worker.device=cpu")


@pytest.mark.parametrize("ranks", [TWO_RANKS, pytest.param(TWO_STAGES, marks=pytest.mark.nightly)])
def test_a_dead_rank_ends_all_and_a_dead_scheduler_none(tiny_llama_dir: Path, ranks: tuple[str, ...]) -> None:
    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        expected = await complete(supervisor.url, session, **SHORT)
        lines = [supervisor._crew.line(rank) for rank in RANKS]
        before = pids(supervisor)
        for victim, num_new in (("worker.1", 2), ("scheduler", 1), ("worker.0", 2)):
            loaded_ns = [line.phase_times_ns()[Phase.LOADING] for line in lines]
            answer = Answer(supervisor.url, session, **SHORT)
            await answer.until(20)
            os.kill(pids(supervisor)[victim], signal.SIGKILL)
            await answer.task
            assert (answer.finish, answer.text) == ("length", expected["choices"][0]["text"])
            after = pids(supervisor)
            new = {name for name in after if after[name] != before[name]}
            assert new == (set(RANKS) if num_new == 2 else {"scheduler"})
            are_kept = [line.phase_times_ns()[Phase.LOADING] for line in lines] == loaded_ns
            assert are_kept == (victim == "scheduler")
            before = after
        assert await live(supervisor, session) == 0

    assert serve(apart(tiny_llama_dir, *ranks), act) == 0


@pytest.mark.nightly
def test_deaths_of_ranks_are_counted_once_a_group(tiny_llama_dir: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One restart is allowed: the death of a second group, two processes, ends the engine with a reason."""

    async def act(supervisor: Supervisor, session: aiohttp.ClientSession) -> None:
        for is_last in (False, True):
            answer = Answer(supervisor.url, session)
            await answer.until(20)
            os.kill(pids(supervisor)["worker.1"], signal.SIGKILL)
            await answer.task
            assert (answer.error is not None) == is_last

    launch = apart(tiny_llama_dir, *TWO_RANKS, "process.worker.restart.max=1", "process.worker.restart.within_s=60")
    assert serve(launch, act) == 1
    assert "process worker.1 died 2 times within 60 s (restart.max = 1)" in capfd.readouterr().err
