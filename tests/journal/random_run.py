"""A random life of a scheduler: admissions, stops, aborts, resumes, failed steps, deaths, in a tiny pool."""

from __future__ import annotations

from pathlib import Path
from random import Random

from callboard.mailbox.messages.admission import Stop
from callboard.mailbox.messages.requests import Abort
from callboard.scheduling.limits import SchedulerLimits
from callboard.tests.journal.recording import RecordedScheduler, recorded_engine
from callboard.tests.scheduling.fake_engine import Engine
from callboard.tests.scheduling.fake_worker import Key, make_admit, make_limits


def random_limits(random: Random) -> SchedulerLimits:
    return make_limits(
        max_num_seqs=random.randint(1, 4),
        max_num_batched_tokens=random.choice([2, 5, 16, 64]),
        long_prefill_token_threshold=random.choice([0, 0, 4]),
        pipeline_depth=random.randint(1, 3),
        watermark=random.choice([0.0, 0.2]),
        max_queued_requests=random.choice([2, 100]),
        num_blocks=random.randint(2, 12),
        block_size=random.choice([1, 2, 4]),
        prefix_caching=random.random() < 0.5,
        max_model_len=random.choice([12, 30]),
        resume_grace_s=random.choice([5e-9, 50e-9]),
        policy=random.choice(["fcfs", "priority"]),
    )


class RandomRun:
    """Acts at random on an engine whose scheduler writes a journal."""

    def __init__(self, seed: int, stem: Path, max_bytes: int = 1 << 24) -> None:
        self.random = Random(seed)
        self.engine, self.scheduler = recorded_engine(random_limits(self.random), stem, max_bytes)
        self._num_admitted = 0

    def act(self) -> None:
        """Something happens."""
        actions = [
            self.admit,
            self.admit,
            self.steps,
            self.steps,
            self.steps,
            self.end,
            self.worker,
            self.resume,
            self.check,
        ]
        self.random.choice(actions)()

    def finish(self) -> RecordedScheduler:
        """Serve all that is left, and close the journal."""
        self.engine.run()
        self.scheduler.writer.close()
        return self.scheduler

    def admit(self) -> None:
        random = self.random
        self._num_admitted += 1
        prefix = random.choice([[], [1, 2, 3, 4], [2] * 11])
        self.engine.admit(
            make_admit(
                f"r{self._num_admitted}",
                prefix + [random.randint(1, 3) for _ in range(random.randint(1, 5))],
                max_tokens=random.randint(1, 12),
                ignore_eos=random.random() < 0.5,
                logprobs=random.choice([None, None, 2]),
                prompt_logprobs=random.choice([None, None, 2]),
                priority=random.randint(-1, 1),
                stop_token_ids=random.choice([(), (5,)]),
                tokenizer=random.choice(["tokenizer.0", "tokenizer.1"]),
                cache_salt=random.choice(["", "", "salt"]),
            )
        )

    def steps(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            if self.engine.plans:
                self.engine.work()
            if self.engine.results:
                self.engine.deliver()

    def end(self) -> None:
        """A stop string, or a client that goes away."""
        live = self._live()
        if not live:
            return
        request_id, choice = key = self.random.choice(live)
        client = self.engine.clients[key]
        client.is_ended_here = True
        if self.random.random() < 0.5:
            self.engine.pump(Stop(request_id, choice, client.attempt, max(0, len(client.token_ids) - 1)))
        else:
            self.engine.pump(Abort(request_id, client.attempt, "client"))

    def worker(self) -> None:
        """It fails a step, dies, or comes."""
        engine = self.engine
        if engine.worker is None:
            engine.attach()
        elif self.random.random() < 0.3:
            engine.worker.num_to_fail = 1
        elif self.random.random() < 0.3:
            engine.lose_worker()

    def resume(self) -> None:
        if self.random.random() < 0.2:
            self.engine.lose_tokenizer(self.random.choice(["tokenizer.0", "tokenizer.1"]))
        orphans = [key for key, client in self.engine.clients.items() if client.is_live and client.is_orphan]
        if orphans and self.random.random() < 0.5:
            self.engine.resume(self.random.choice(orphans), "tokenizer.1")

    def check(self) -> None:
        self.scheduler.check_integrity()

    def _live(self) -> list[Key]:
        clients = self.engine.clients.items()
        return [key for key, client in clients if client.is_live and not client.is_orphan]


def random_run(seed: int, stem: Path, num_actions: int, max_bytes: int = 1 << 24) -> tuple[Engine, RecordedScheduler]:
    """A whole one; the journal is closed."""
    run = RandomRun(seed, stem, max_bytes)
    for _ in range(num_actions):
        run.act()
    return run.engine, run.finish()
