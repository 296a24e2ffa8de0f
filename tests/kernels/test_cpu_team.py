"""Threads that claim parts and meet at barriers: each part once, nobody early, nobody left behind."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from callboard.kernels.cpu.team import Team
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
    team.run(lambda index: run_rounds(team.state, index, num_rounds, marks, faults[index]))
    assert (marks == num_rounds).all()
    assert faults[0, 1] == num_rounds
    return faults[:, 0].sum()


def test_no_part_is_lost_or_done_twice_in_ten_thousand_barriers(team):
    assert count_faults(team, 5000) == 0


def test_runs_follow_one_another(team):
    assert sum(count_faults(team, 1) for _ in range(100)) == 0


def test_each_thread_has_its_own_number(team):
    seen, all_there = [0] * team.num_threads, threading.Barrier(team.num_threads)

    def work(index):
        seen[index] = threading.get_ident()
        all_there.wait(60.0)

    team.run(work)
    assert len(set(seen)) == team.num_threads
    assert seen[0] == threading.get_ident()


def test_nobody_waits_for_a_helper_that_is_late_and_it_touches_nothing(team):
    """It comes when the run is over, and while later ones go on."""
    faults, marks = np.zeros((team.num_threads, 8), np.int64), np.zeros(NUM_PARTS, np.int64)
    are_inside = threading.Barrier(team.num_threads)
    may_come, are_through = threading.Event(), threading.Semaphore(0)

    def work(index):
        are_inside.wait(60.0)
        if index:
            assert may_come.wait(60.0)
        run_rounds(team.state, index, 50, marks, faults[index])
        if index:
            are_through.release()

    team.run(work)
    assert (marks == 50).all() and faults[0].tolist()[:2] == [0, 50]
    may_come.set()
    assert count_faults(team, 2000) == 0
    for _ in range(team.num_threads - 1):
        assert are_through.acquire(timeout=60.0)
    assert (marks == 50).all() and not faults[1:].any()


@pytest.mark.parametrize("turn", range(5))
def test_a_helper_joins_in_the_middle(team, turn):
    """The caller's first rounds are its own; then the others are let in."""
    faults, marks = np.zeros((team.num_threads, 8), np.int64), np.zeros(NUM_PARTS, np.int64)
    may_come = threading.Event()
    num_rounds = 2_000

    def work(index):
        if index == 0:
            threading.Thread(target=may_come.set).start()
        else:
            assert may_come.wait(60.0)
        run_rounds(team.state, index, num_rounds, marks, faults[index])

    team.run(work)
    assert (marks == num_rounds).all()
    assert not faults[:, 0].any()
    assert faults[0, 1] == num_rounds


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
