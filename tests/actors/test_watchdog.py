"""Which processes count as hung: driven with a clock made of numbers."""

from __future__ import annotations

import numpy as np

from callboard.actors.watchdog import Watchdog
from callboard.shm_queue import Phase, ProgressLine
from callboard.shm_queue.progress import LINE_WORDS
from callboard.topology.schema import SupervisionSection

SETTINGS = SupervisionSection(step_deadline_s=80.0, actor_deadline_s=16.0)


class Watched:
    """One actor and the watchdog, whose clock goes in its own intervals of 1 s."""

    def __init__(self, *, is_worker: bool = False, phase: Phase = Phase.IDLE) -> None:
        self.watchdog = Watchdog(SETTINGS)
        self.line = ProgressLine(np.zeros(LINE_WORDS, np.uint64))
        self.line.phase = phase
        self.is_worker = is_worker
        self.has_unread = False
        self.now_s = 1000.0

    def after(self, seconds: int, *, beats: bool = True, gap_s: float = 0.0) -> str | None:
        """The first reason within so many rounds; `gap_s`: the watching process sleeps before them."""
        self.now_s += gap_s
        for _ in range(seconds):
            self.now_s += 1
            if beats:
                self.line.heartbeat_ns = int(self.now_s * 1e9)
            self.watchdog.tick(int(self.now_s * 1e9))
            reason = self.watchdog.check("worker", self.line, (lambda: self.has_unread) if self.is_worker else None)
            if reason is not None:
                return reason
        return None


def test_an_idle_process_that_beats_is_never_hung() -> None:
    assert Watched(is_worker=True).after(1000) is None


def test_a_loop_that_stands_still_is_found_after_its_deadline() -> None:
    watched = Watched()
    assert watched.after(3) is None
    assert watched.after(16, beats=False) is None
    assert watched.after(2, beats=False) == "worker's event loop has not turned for 17 s (actor_deadline_s)"


def test_a_step_that_does_not_end_is_found_after_its_deadline() -> None:
    watched = Watched(is_worker=True)
    watched.line.mark(phase=Phase.STEPPING, step=7)
    assert watched.after(81) is None
    assert watched.after(1) == "worker has been in step 7 for 81 s (step_deadline_s)"


def test_steps_that_go_on_are_no_hang() -> None:
    watched = Watched(is_worker=True)
    for step in range(5):
        watched.line.mark(phase=Phase.STEPPING, step=step)
        watched.has_unread = True
        assert watched.after(70) is None
        watched.line.mark(phase=Phase.IDLE, step=step)


def test_a_plan_left_unread_is_found() -> None:
    watched = Watched(is_worker=True)
    assert watched.after(100) is None
    watched.has_unread = True
    assert watched.after(81) is None
    reason = watched.after(1)
    assert reason == "worker has left a plan unread for 81 s (step_deadline_s)"


def test_a_declared_slow_phase_is_no_hang() -> None:
    for phase in (Phase.STARTING, Phase.LOADING, Phase.WARMING):
        watched = Watched(is_worker=True, phase=phase)
        watched.has_unread = True
        assert watched.after(600, beats=False) is None
        watched.line.phase = Phase.IDLE
        watched.has_unread = False
        assert watched.after(15, beats=False) is None, "the time before does not count"


def test_an_actor_that_waits_for_others_of_its_process_to_start_is_no_hang() -> None:
    """A scheduler serves at once, but its process first turns its loop when the model beside it is loaded."""
    watched = Watched(phase=Phase.WAITING)
    assert watched.after(600, beats=False) is None
    assert watched.after(1) is None
    assert watched.after(16, beats=False) is None, "the time before does not count"
    assert watched.after(1, beats=False) == "worker's event loop has not turned for 17 s (actor_deadline_s)"


def test_time_in_which_the_watcher_was_stopped_too_does_not_count() -> None:
    watched = Watched(is_worker=True)
    watched.line.mark(phase=Phase.STEPPING, step=1)
    assert watched.after(5) is None
    assert watched.after(10, beats=False, gap_s=3600.0) is None


def test_the_interval_is_short_enough_for_short_deadlines() -> None:
    assert Watchdog(SupervisionSection(step_deadline_s=0.8, actor_deadline_s=4.0)).interval_s == 0.1
    assert Watchdog(SETTINGS).interval_s == 1.0
