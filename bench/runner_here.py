"""The runner of a worker in this process, made as the worker makes it, and fed with plans made here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..actors.launch import Launch, prepare_launch
from ..actors.runners import make_runner
from ..execution.forward import Forward
from ..execution.runner import ModelRunner
from ..mailbox.messages.control import Start
from ..mailbox.messages.sampling import SamplingParams
from ..mailbox.messages.steps import NewRow, StepPlan, StepResult
from ..shm_queue.progress import LINE_WORDS, ProgressLine
from ..topology import blocks_for, topology_from
from ..topology.plan import worker_process

Tokens = Sequence[int]


def launch_of(
    model: str,
    *,
    dtype: str,
    num_rows: int,
    max_len: int,
    max_step_tokens: int,
    num_threads: int | None = None,
    activation_bits: str | None = None,
) -> Launch:
    """What a start of `serve` would prepare for so many rows of up to `max_len` tokens. Raises ConfigError.

    `num_threads`: of the worker, and so of this process; None: its cores. `activation_bits`: None: the default.
    """
    settings = {
        "model.dtype": dtype,
        "model.max_model_len": str(max_len),
        "scheduler.max_num_seqs": str(num_rows),
        "scheduler.max_num_batched_tokens": str(max(max_step_tokens, num_rows)),
    }
    if activation_bits is not None:
        settings["model.activation_bits"] = activation_bits
    if num_threads is not None:
        settings["process.worker.threads"] = str(num_threads)
    block_size = topology_from(model).kv_cache.block_size
    settings["kv_cache.num_blocks"] = str(num_rows * blocks_for(max_len, block_size))
    return prepare_launch(topology_from(model, settings))


class RunnerHere:
    """Row i has run i, and the blocks from i * blocks_for(max_model_len) on."""

    def __init__(self, launch: Launch) -> None:
        """Loads the model. Raises what a worker's start does."""
        section = worker_process(launch.topology)
        start = Start(
            process=section.name,
            incarnation=1,
            actors=("worker",),
            all_actors=("worker",),
            topology=launch.topology,
            checkpoint=launch.checkpoint,
            shape=launch.shape,
            num_blocks=launch.ledger.num_blocks,
            max_model_len=launch.max_model_len,
            links=(),
            boards=(),
            fds=(),
            draft=launch.draft,
        )
        runner = make_runner(start, section, ProgressLine(np.zeros(LINE_WORDS, np.uint64)))
        assert isinstance(runner, ModelRunner), "a null device computes no model"
        self._runner, self._max_len = runner, launch.max_model_len
        self._blocks_per_row = blocks_for(launch.max_model_len, launch.topology.kv_cache.block_size)
        self._runner.warm_up()

    def run(self, plan: StepPlan) -> StepResult:
        """Run a plan that somebody else made: its rows, runs and blocks are his."""
        return self._runner.run(plan)

    @property
    def forward(self) -> Forward:
        """Of the model, as it was loaded."""
        return self._runner.forward

    def prompt_steps(
        self, prompts: Sequence[Tokens], sampling: SamplingParams, num_tokens: int, *, samples: bool
    ) -> Iterator[StepResult]:
        """Place the prompts on the rows and compute them, `num_tokens` of each a step; with `samples` the last step of
        a prompt yields a token. Whatever was on the rows before is forgotten."""
        self._runner.clear()
        new_rows = [self._new_row(row, prompt, sampling) for row, prompt in enumerate(prompts)]
        lengths = np.array([len(prompt) for prompt in prompts], np.int32)
        for begin in range(0, int(lengths.max()), num_tokens):
            rows = np.flatnonzero(lengths > begin).astype(np.int32)
            counts = np.minimum(num_tokens, lengths[rows] - begin).astype(np.int32)
            is_sampled = (begin + counts == lengths[rows]) & samples
            starts = np.full(len(rows), begin, np.int32)
            yield self._runner.run(_plan(new_rows, rows, starts, counts, is_sampled))
            new_rows = []

    def decode_step(self, starts: npt.NDArray[np.int32]) -> StepResult:
        """One token more of each row; `starts` [number of rows]: positions of the tokens that were sampled last."""
        rows = np.arange(len(starts), dtype=np.int32)
        return self._runner.run(_plan([], rows, starts, np.ones_like(starts), np.ones(len(starts), np.bool_)))

    def _new_row(self, row: int, prompt: Tokens, sampling: SamplingParams) -> NewRow:
        begin = row * self._blocks_per_row
        return NewRow(
            row=row,
            run=row,
            request_id=str(row),
            choice=0,
            attempt=1,
            num_prompt_tokens=len(prompt),
            token_ids=np.array(prompt, "<i4").tobytes(),
            block_ids=np.arange(begin, begin + self._blocks_per_row, dtype="<i4").tobytes(),
            sampling=sampling,
        )


def _plan(
    new_rows: list[NewRow],
    rows: npt.NDArray[np.int32],
    starts: npt.NDArray[np.int32],
    num_tokens: npt.NDArray[np.int32],
    samples: npt.NDArray[np.bool_],
) -> StepPlan:
    return StepPlan(
        epoch=1,
        step=0,
        now_ns=0,
        new_rows=new_rows,
        removed_rows=b"",
        rows=rows.tobytes(),
        runs=rows.astype("<i8").tobytes(),
        starts=starts.tobytes(),
        num_tokens=num_tokens.tobytes(),
        samples=samples.tobytes(),
    )
