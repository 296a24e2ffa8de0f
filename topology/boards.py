"""The geometry of the boards, from the limits in the topology: no plan and no result can be larger than its slot.

What bounds a plan, and who keeps it:

- at most `max_num_seqs` rows, new, removed or scheduled, and `max_num_batched_tokens` tokens to compute: the scheduler;
- at most `max_plan_tokens` known tokens (prompt and output so far) in the new rows of one plan, where each entry in the
  lists of a row's sampling parameters counts as `TOKENS_PER_SAMPLING_ENTRY`: the scheduler, which leaves further
  admissions to the next step. One request of full length with full lists always fits. After a restart of a worker all
  running requests come back as new rows; they spread over some steps;
- at most `max_plan_blocks` block ids: follows from the two above, for a row holds blocks for its known tokens and for
  the tokens that the steps in flight may add: in each one, and as many as it has drafts;
- request ids of at most 128 bytes, at most 20 log-probabilities a token, of output and prompt, and at most
  `MAX_SAMPLING_ENTRIES` entries in a request's lists: the API, before a request is accepted;
- an error of at most `MAX_ERROR_CHARS` characters in the result of a failed step: the worker;
- no stop strings and no bad words as text: the scheduler and the tokenizer take them out of the sampling parameters.

A draft is one of the tokens to compute. A result holds at most a token for each row and, together, at most
`max_num_batched_tokens` accepted drafts and tokens of prompts, each with its log-probabilities: a step computes no more
positions.
"""

from __future__ import annotations

import msgspec

from ..checkpoints.shape import ModelShape
from ..shm_queue.layout import BoardLayout
from ..shm_queue.mask_region import MaskLayout
from ..shm_queue.rank_region import RankRegionLayout
from .plan import blocks_for, num_ranks_of, output_rank_of, worker_process
from .schema import ProcessSection, Topology

MAX_REQUEST_ID_BYTES = 128
MAX_LOGPROBS = 20
"""Alternatives a token, `top_logprobs` of the API."""

MAX_SAMPLING_ENTRIES = 4096
"""Token ids in the lists of one request's sampling parameters together (`SamplingParams.num_entries`)."""
TOKENS_PER_SAMPLING_ENTRY = 4
"""An entry takes at most 16 bytes of a plan, as much as so many known tokens."""

MAX_ERROR_CHARS = 200
"""Of what a failed step raised."""

MAX_SLOT_BYTES = 256 * 1024 * 1024
"""A plan beyond this is a mistake in the topology; a usual one has some 100 KiB."""

# MessagePack: an integer or float64 takes at most 9 bytes; a string, binary or array header at most 5.
_NUMBER = 9
_HEADER = 5
_BOOL = 1
_REPETITION_DETECTION = _HEADER + 3 * _NUMBER
_SAMPLING = _HEADER + 12 * _NUMBER + 4 * _BOOL + 6 * _HEADER + _REPETITION_DETECTION
"""Numbers: seed, temperature, top_k, top_p, min_p, max_tokens, logprobs, three penalties, min_tokens, prompt_logprobs;
truth values: ignore_eos, include_stop_str_in_output, skip_special_tokens, processed_logprobs; lists: stop and bad_words
(empty), logit_bias, allowed_token_ids, bad_token_ids, stop_token_ids, whose entries count as tokens."""
SHARING_KEY_CHARS = 32
"""Of `NewRow.sharing_key`."""
_NEW_ROW = (
    _HEADER
    + 7 * _NUMBER
    + _BOOL
    + _HEADER
    + MAX_REQUEST_ID_BYTES
    + 2 * _HEADER
    + _SAMPLING
    + _HEADER
    + SHARING_KEY_CHARS
)
"""One NewRow beside its tokens and blocks."""
_SPARE = 256
"""For fields that a later version adds at the end."""
_STAGE_HEAD_BYTES = 24
"""Before what a stage hands on (execution/stage_links.py)."""
_PLANS_APART = 4
"""Plans without a row to compute, or void ones, by which a rank may be behind rank 0."""
_LARGEST_ELEMENT, _PAGE_BYTES, _MAX_RANK_SLOT_BYTES = 4, 4096, 1 << 20
"""Hidden states are float32 at the most; what is larger than a cache holds is not exchanged faster in one part."""


def max_plan_tokens(topology: Topology, max_model_len: int) -> int:
    """Known tokens and entries of sampling parameters that the new rows of one plan may carry together, in tokens; the
    scheduler enforces it."""
    return usual_plan_tokens(max_model_len, topology.scheduler.max_num_batched_tokens)


def usual_plan_tokens(max_model_len: int, max_num_batched_tokens: int) -> int:
    """`max_plan_tokens`, from numbers: a row of full length with full lists, or what fills some steps."""
    full_row = max_model_len + TOKENS_PER_SAMPLING_ENTRY * MAX_SAMPLING_ENTRIES
    return max(full_row, 4 * max_num_batched_tokens)


def max_plan_blocks(topology: Topology, max_model_len: int) -> int:
    """Block ids that one plan may carry, in new rows and appended to others together."""
    block_size = topology.kv_cache.block_size
    scheduler = topology.scheduler
    tokens = max_plan_tokens(topology, max_model_len) + scheduler.max_num_batched_tokens
    # Each row may start one block for its last few tokens, and more for those that the steps in flight may add.
    max_drafts = 0 if topology.speculative is None else topology.speculative.max_tokens
    num_ahead = scheduler.pipeline_depth * (1 + max_drafts)
    return blocks_for(tokens, block_size) + scheduler.max_num_seqs * (1 + blocks_for(num_ahead, block_size))


def plan_bytes(topology: Topology, max_model_len: int) -> int:
    """Upper bound of an encoded `StepPlan`."""
    rows = topology.scheduler.max_num_seqs
    tokens = topology.scheduler.max_num_batched_tokens
    # removed_rows, rows, runs, starts, num_tokens, samples, num_drafts or max_drafts, draft_ends; draft_ids
    arrays = rows * (4 + 4 + 8 + 4 + 4 + 1 + 4 + 4) + 4 * tokens + 12 * _HEADER
    new_rows = _HEADER + rows * _NEW_ROW + 4 * max_plan_tokens(topology, max_model_len)
    blocks = 8 * max_plan_blocks(topology, max_model_len)  # a row and a block id for each that is appended
    is_fresh = 1
    return _HEADER + 4 * _NUMBER + arrays + new_rows + blocks + is_fresh + _SPARE


def result_bytes(topology: Topology) -> int:
    """Upper bound of an encoded `StepResult`."""
    rows = topology.scheduler.max_num_seqs
    tokens = rows + topology.scheduler.max_num_batched_tokens
    sampled = rows * (8 + 4 + 4 + 4) + 9 * _HEADER  # runs, positions, num_sampled, num_drafted
    max_drafts = 0 if topology.speculative is None else topology.speculative.max_tokens
    sampled += rows * (8 + 4 + 4 * max_drafts) + 3 * _HEADER  # next_draft_runs, num_next_drafts, next_draft_ids
    of_prompts = rows * (8 + 4 + 4) + 8 * _HEADER  # runs, starts, counts
    # token_ids, logprob_rows, logprobs, top_ids, top_logprobs; of a token of a prompt one number less
    of_tokens = tokens * (4 + 4 + 4 + (4 + 4) * MAX_LOGPROBS)
    error = _HEADER + 4 * MAX_ERROR_CHARS  # up to 4 bytes each
    return _HEADER + 6 * _NUMBER + sampled + of_prompts + of_tokens + error + _SPARE


def plan_boards(topology: Topology, max_model_len: int, epoch: int) -> tuple[BoardLayout, BoardLayout]:
    """(call board, result board) of one epoch. depth + 2 slots each: no publish waits in a healthy engine.

    Ranks compute a step together, so none is further behind rank 0, whose results make room for plans; but for plans
    that have nothing to compute.
    """
    num_slots = topology.scheduler.pipeline_depth + 2
    num_ranks = num_ranks_of(worker_process(topology))
    num_apart = _PLANS_APART if num_ranks > 1 else 0
    return (
        BoardLayout("call", epoch, num_slots + num_apart, _round_up(plan_bytes(topology, max_model_len)), num_ranks),
        BoardLayout("result", epoch, num_slots, _round_up(result_bytes(topology)), 1),
    )


def rank_region_layout(topology: Topology, shape: ModelShape) -> RankRegionLayout:
    """What the ranks of one stage exchange tensors through; larger ones go in several parts."""
    num_bytes = topology.scheduler.max_num_batched_tokens * shape.hidden_size * _LARGEST_ELEMENT
    slot_bytes = min(-(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES, _MAX_RANK_SLOT_BYTES)
    return RankRegionLayout("ranks", worker_process(topology).tensor_parallel, slot_bytes)


def stage_boards(topology: Topology, shape: ModelShape) -> tuple[BoardLayout, ...]:
    """Between the stages of a worker: hidden states from each rank to its like in the next stage, `hidden.<rank>`, and
    sampled tokens to the ranks of the first one, `tokens`. None if there is one stage."""
    section, scheduler = worker_process(topology), topology.scheduler
    if section.pipeline_parallel == 1:
        return ()
    num_slots = scheduler.pipeline_depth + _PLANS_APART
    hidden_bytes = _STAGE_HEAD_BYTES + scheduler.max_num_batched_tokens * shape.hidden_size * _LARGEST_ELEMENT
    token_bytes = _STAGE_HEAD_BYTES + 4 * scheduler.max_num_seqs
    num_senders = output_rank_of(section)
    return (
        *(BoardLayout(f"hidden.{rank}", 0, num_slots, _round_up(hidden_bytes), 1) for rank in range(num_senders)),
        BoardLayout("tokens", 0, num_slots, _round_up(token_bytes), section.tensor_parallel),
    )


class StageBoards(msgspec.Struct, frozen=True):
    """Those that a rank reads and writes, if it does."""

    hidden_in: BoardLayout | None
    hidden_out: BoardLayout | None
    tokens_in: BoardLayout | None
    """Of the first stage."""
    tokens_out: BoardLayout | None
    """Of the rank that samples."""


def stage_boards_of(boards: tuple[BoardLayout, ...], section: ProcessSection, rank: int) -> StageBoards:
    """boards: as `stage_boards` has them, some."""
    *hidden, tokens = boards
    size, output_rank = section.tensor_parallel, output_rank_of(section)
    return StageBoards(
        hidden[rank - size] if rank >= size else None,
        hidden[rank] if rank < output_rank else None,
        tokens if rank < size else None,
        tokens if rank == output_rank else None,
    )


def mask_layout(topology: Topology, shape: ModelShape) -> MaskLayout:
    """Slots for the masks of every row: a row has a mask for each step in flight, one that is being made, and one
    behind each of its drafts."""
    return MaskLayout(topology.scheduler.max_num_seqs, mask_positions(topology), shape.vocab_size)


def mask_positions(topology: Topology) -> int:
    """Slots of one row."""
    drafts = topology.speculative
    return topology.scheduler.pipeline_depth + 1 + (0 if drafts is None else drafts.max_tokens)


def _round_up(num_bytes: int) -> int:
    """To whole cache lines."""
    return -(-num_bytes // 64) * 64
