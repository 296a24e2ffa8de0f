"""Messages on the boards: step plans from the scheduler to the ranks, results from the output rank back.

| message    | sender      | receiver  | transport    | bound                     | when full            | when the peer dies                          |
|------------|-------------|-----------|--------------|---------------------------|----------------------|---------------------------------------------|
| StepPlan   | scheduler   | all ranks | call board   | pipeline depth in flight  | never (slots >= depth + 2) | epoch ends; rows are preempted, recomputed |
| StepResult | output rank | scheduler | result board | pipeline depth in flight  | never (slots >= depth + 2) | epoch ends                                 |

Arrays travel as the bytes of little-endian numpy arrays (`int32` unless said); `numpy.frombuffer` reads them without a copy.
A `row` is a slot of the worker's persistent batch, 0 <= row < max_num_seqs; `run` is a number that the scheduler never
reuses, new at admission and at preemption, so it names the request, its attempt and its placement: a delta carries `run`
where the first plan of a row carried `(request_id, choice, attempt, run)`.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from .sampling import SamplingParams

NO_DRAFTING = -1
"""In `StepPlan.max_drafts`: the row computes what the plan says, wherever it stands."""


class NewRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row in full, sent once when the request takes the row; later plans carry what changed."""

    row: int
    run: int
    request_id: str
    choice: int
    attempt: int
    num_prompt_tokens: int
    token_ids: bytes
    """int32: every token known so far, prompt then output."""
    block_ids: bytes
    """int32: the blocks held now, prefix hits first; block i holds positions i * block_size and on."""
    sampling: SamplingParams
    first_output_index: int = 0
    """Output tokens of a session's earlier turns, which count as prompt: the token at position p is drawn with the index
    p - num_prompt_tokens + first_output_index."""
    is_constrained: bool = False
    """Each of its tokens is drawn under the mask for (epoch, run, base, position) of the `MaskRegion`, where base is the
    number of tokens known when the step begins; where that is not there when the step samples the row yields no token,
    behind drafts none from there on."""
    sharing_key: str = ""
    """If the worker guesses drafts: rows of the same key may be guessed from each other's output."""


class StepPlan(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=30):
    """What the ranks compute in one step.

    Applied in this order: `removed_rows` are cleared, `new_rows` placed, blocks appended, then the n scheduled rows run.
    Row i computes positions `starts[i] .. starts[i] + num_tokens[i] - 1`; where a position's token is not known to the
    scheduler yet it is the one that an earlier step sampled, which the worker has. If `samples[i]` the row yields the token
    at position starts[i] + num_tokens[i].

    Drafts come with the plan (`num_drafts`, `draft_ids`: of a proposer that told the scheduler), or are guessed by the
    worker's own proposer when the step begins (`max_drafts`, `draft_ends`). How many drafts of the steps in flight will be
    accepted is not known when a plan is made, so a row of the second kind goes on where it stands by then.
    """

    epoch: int
    step: int
    now_ns: int
    """CLOCK_MONOTONIC handed to the scheduler when it made the plan."""
    new_rows: list[NewRow]
    removed_rows: bytes
    """int32 [num_removed]"""
    rows: bytes
    """int32 [n]"""
    runs: bytes
    """int64 [n]"""
    starts: bytes
    """int32 [n]"""
    num_tokens: bytes
    """int32 [n], each >= 1"""
    samples: bytes
    """bool [n]"""
    block_rows: bytes = b""
    """int32 [m]: the row that gets block_ids[j] appended to its block table, in order."""
    block_ids: bytes = b""
    """int32 [m]"""
    is_fresh: bool = False
    """The worker clears all its rows before anything else: the first plan after a step that failed."""
    num_drafts: bytes = b""
    """int32 [n]: of each row's tokens so many, its last ones, are drafts; empty: no row has any."""
    draft_ids: bytes = b""
    """int32 [sum(num_drafts)]"""
    max_drafts: bytes = b""
    """int32 [n]; empty: no row drafts. -1: the row computes what `starts` and `num_tokens` say. Else it samples, and
    computes its last token, at starts[i] or behind it, and up to so many drafts of the worker's own. (A constrained one
    may stand before it: a step that found no mask has not moved it.) A row whose last token stands at draft_ends[i] or behind it has come to its end: it computes nothing, and the result has no row of it."""
    draft_ends: bytes = b""
    """int32 [n]: where `max_drafts` is not -1, the first position that may not be computed; it has blocks up to there."""


class StepOutcome(IntEnum):
    """How a step ended."""

    DONE = 0
    FAILED = 1
    """It raised: it yields nothing, and what it wrote is not to be used."""
    VOID = 2
    """It was not run, for a step before it failed and no fresh plan has come since."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Log-probabilities of prompt tokens, of the p pieces that the rows of a step computed, m tokens in all.

    Piece i describes the tokens at positions starts[i] .. starts[i] + counts[i] - 1 of run runs[i]. All raw.
    """

    runs: bytes
    """int64 [p]"""
    starts: bytes
    """int32 [p], each >= 1"""
    counts: bytes
    """int32 [p]"""
    logprobs: bytes
    """float32 [m]: of the token that stands in the prompt"""
    ranks: bytes
    """int32 [m]: of that token among all, 1 for the most likely"""
    top_ids: bytes
    """int32 [m, the most that a piece's request asked for]; a request takes the first `sampling.prompt_logprobs`"""
    top_logprobs: bytes
    """float32, shape of top_ids"""


class StepResult(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=31):
    """The tokens of one step, a row for each plan row with `samples`, in plan order; one result for each plan."""

    epoch: int
    step: int
    runs: bytes
    """int64 [k]"""
    positions: bytes
    """int32 [k]: absolute position (prompt included) of the sampled token."""
    token_ids: bytes
    """int32 [sum(num_sampled)]"""
    start_ns: int
    """CLOCK_MONOTONIC when the worker began the step."""
    end_ns: int
    """CLOCK_MONOTONIC when the sampled tokens were on the host."""
    logprob_rows: bytes = b""
    """int32 [j]: indexes into `token_ids`, of the tokens whose requests asked for log-probabilities."""
    logprobs: bytes = b""
    """float32 [j]: raw log-probability of the sampled token."""
    top_ids: bytes = b""
    """int32 [j, max_logprobs_of_the_step]; a request takes the first `sampling.logprobs` of its row."""
    top_logprobs: bytes = b""
    """float32, shape of top_ids"""
    num_plans_waiting: int = 0
    """Plans that the worker had, launched or on the call board, when the step ended: its device went on."""
    outcome: StepOutcome = StepOutcome.DONE
    """If it is not DONE the result has no rows."""
    error: str = ""
    """Of a failed step: what it raised, at most `topology.boards.MAX_ERROR_CHARS` characters."""
    prompt_logprobs: PromptLogprobs | None = None
    """If a scheduled row asked for them and computed positions of its prompt."""
    num_sampled: bytes = b""
    """int32 [k]: tokens of each row, the accepted drafts and one more, which stand together in `token_ids`; empty: one
    each. `positions` are those of the first. 0: a constrained row whose mask was not there, to be planned again."""
    num_drafted: bytes = b""
    """int32 [k]: drafts of each row that were verified; empty: as many as the plan gave."""
    next_draft_runs: bytes = b""
    """int64 [m]: constrained rows for which the worker has guessed already what comes behind the tokens of this result,
    so that the masks for these guesses can be made; their next step verifies them, or the first of them."""
    num_next_drafts: bytes = b""
    """int32 [m]"""
    next_draft_ids: bytes = b""
    """int32 [sum(num_next_drafts)]"""
