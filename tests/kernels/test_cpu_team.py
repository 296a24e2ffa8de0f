"""Threads that claim parts and meet at barriers: each part once, nobody early, nobody left behind."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from callboard.kernels.cpu.team import Team, barrier
from callboard.tests.kernels.cpu_loops import run_rounds

NUM_PARTS = 7


@pytest.fixture(params=[1, 2, 3, 4])
def team(request):
    team = Team(request.param)
    yield team
    team.close()


def count_faults(team, num_rounds):
    faults = np.zeros((team.num_threads, 8), np.int64)
    marks = np.zeros(NUM_PARTS, np.int64)
    team.run(lambda index: run_rounds(team.state, team.num_threads, num_rounds, marks, faults[index]))
    assert (marks == num_rounds).all()
    return faults.sum()


def test_no_part_is_lost_or_done_twice_in_ten_thousand_barriers(team):
    assert count_faults(team, 5000) == 0


def test_runs_follow_one_another(team):
    assert sum(count_faults(team, 1) for _ in range(100)) == 0


def test_each_thread_has_its_own_number(team):
    seen = [0] * team.num_threads

    def work(index):
        seen[index] = threading.get_ident()
        barrier(team.state, team.num_threads)

    team.run(work)
    assert len(set(seen)) == team.num_threads
    assert seen[0] == threading.get_ident()


def helpers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("compute-")]


def open_files():
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("has_run", [False, True])
def test_close_ends_the_threads_and_gives_their_files_back(num_threads, has_run):
    before, files = helpers(), open_files()
    team = Team(num_threads)
    assert len(helpers()) == len(before) + num_threads - 1
    if has_run:
        assert count_faults(team, 10) == 0
    team.close()
    assert helpers() == before
    assert open_files() == files
