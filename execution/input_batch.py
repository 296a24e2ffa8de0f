"""The worker's persistent batch: what it knows of each row between steps, as arrays of `max_num_seqs` rows.

A plan carries only what changed. The token that a step samples is written at its position here, so that the next plan,
made before that token was known, finds it: this is what lets plans run ahead of results.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import ProtocolViolation
from ..mailbox.messages.steps import NewRow, StepPlan

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]


class SamplingArrays:
    """Sampling parameters of every row that are one number, [max_num_seqs] each; `row_logits` has the others."""

    def __init__(self, max_num_seqs: int) -> None:
        self.temperature = np.zeros(max_num_seqs, np.float32)
        """Positive wherever the request's is, even where float32 cannot hold that: 0 alone means arg max."""
        self.top_k = np.zeros(max_num_seqs, np.int64)
        self.top_p = np.ones(max_num_seqs, np.float32)
        self.min_p = np.zeros(max_num_seqs, np.float32)
        self.seed = np.zeros(max_num_seqs, np.uint64)
        self.choice = np.zeros(max_num_seqs, np.int64)
        self.has_logprobs = np.zeros(max_num_seqs, np.bool_)
        self.num_logprobs = np.zeros(max_num_seqs, np.int32)
        self.has_processed_logprobs = np.zeros(max_num_seqs, np.bool_)
        self.has_prompt_logprobs = np.zeros(max_num_seqs, np.bool_)
        self.num_prompt_logprobs = np.zeros(max_num_seqs, np.int32)

    def place(self, new: NewRow) -> None:
        """Take over the parameters of a new row."""
        row, sampling = new.row, new.sampling
        smallest = float(np.finfo(np.float32).tiny)
        self.temperature[row] = max(sampling.temperature, smallest) if sampling.temperature > 0 else 0.0
        self.top_k[row] = sampling.top_k
        self.top_p[row] = sampling.top_p
        self.min_p[row] = sampling.min_p
        self.seed[row] = sampling.seed
        self.choice[row] = new.choice
        self.has_logprobs[row] = sampling.logprobs is not None
        self.num_logprobs[row] = sampling.logprobs or 0
        self.has_processed_logprobs[row] = sampling.processed_logprobs
        self.has_prompt_logprobs[row] = sampling.prompt_logprobs is not None
        self.num_prompt_logprobs[row] = sampling.prompt_logprobs or 0


class InputBatch:
    """Rows 0 .. max_num_seqs - 1; a row without a request has `is_used` False."""

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        self.max_num_seqs, self.max_model_len, self.block_size = max_num_seqs, max_model_len, block_size
        self.max_blocks = -(-max_model_len // block_size)
        self.token_ids: Int32s = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        """Known and sampled tokens by position; one column more for the token that ends a full row."""
        self.num_known: Int32s = np.zeros(max_num_seqs, np.int32)
        """Positions 0 .. num_known - 1 of the row hold a token."""
        self.block_table: Int32s = np.zeros((max_num_seqs, self.max_blocks), np.int32)
        self.num_blocks: Int32s = np.zeros(max_num_seqs, np.int32)
        self.num_prompt_tokens: Int32s = np.zeros(max_num_seqs, np.int32)
        self.index_origins: Int32s = np.zeros(max_num_seqs, np.int32)
        """The position whose token would be output number 0: behind the prompt, unless earlier turns stand in it."""
        self.run: Int64s = np.zeros(max_num_seqs, np.int64)
        self.is_used = np.zeros(max_num_seqs, np.bool_)
        self.is_constrained = np.zeros(max_num_seqs, np.bool_)
        """Each token of the row is sampled under a mask."""
        self.has_constrained_rows = False
        """Whether any row in use is."""
        self.sampling = SamplingArrays(max_num_seqs)

    def apply(self, plan: StepPlan) -> None:
        """Removed rows, new rows, appended blocks, in this order.

        Raises ProtocolViolation for a row that does not exist, is taken, or is given more than it can hold.
        """
        removed = np.frombuffer(plan.removed_rows, np.int32)
        if removed.size:
            self._check_rows(removed, "removed_rows")
            self.is_used[removed] = False
            if self.has_constrained_rows:
                self.has_constrained_rows = bool((self.is_used & self.is_constrained).any())
        for new in plan.new_rows:
            self._place(new)
        if plan.block_rows:
            self._append_blocks(np.frombuffer(plan.block_rows, np.int32), np.frombuffer(plan.block_ids, np.int32))

    def write_sampled(self, rows: Int32s, positions: Int32s, token_ids: Int32s) -> None:
        """The tokens that a step sampled; arrays [k]."""
        self.token_ids[rows, positions] = token_ids
        self.num_known[rows] = np.maximum(self.num_known[rows], positions + 1)

    def expect_sampled(self, rows: Int32s, positions: Int32s) -> None:
        """A step that was launched will sample tokens there: until `write_sampled` only the device knows them."""
        self.num_known[rows] = np.maximum(self.num_known[rows], positions + 1)

    def clear(self) -> None:
        """Forget every row, as at the start of an epoch."""
        self.is_used[:] = False
        self.has_constrained_rows = False

    def _check_rows(self, rows: Int32s, field: str) -> None:
        if rows.min() < 0 or rows.max() >= self.max_num_seqs:
            raise ProtocolViolation(f"{field} names a row outside 0..{self.max_num_seqs - 1}: {rows.tolist()}")

    def _place(self, new: NewRow) -> None:
        row = new.row
        if not 0 <= row < self.max_num_seqs:
            raise ProtocolViolation(f"new row {row} is outside 0..{self.max_num_seqs - 1} (request {new.request_id})")
        if self.is_used[row]:
            raise ProtocolViolation(f"row {row} is taken by run {self.run[row]}; request {new.request_id} wants it too")
        token_ids, block_ids = np.frombuffer(new.token_ids, np.int32), np.frombuffer(new.block_ids, np.int32)
        if token_ids.size > self.max_model_len or block_ids.size > self.max_blocks:
            raise ProtocolViolation(
                f"request {new.request_id} comes with {token_ids.size:,} tokens and {block_ids.size:,} blocks; a row "
                f"holds {self.max_model_len:,} and {self.max_blocks:,}"
            )
        self.token_ids[row, : token_ids.size] = token_ids
        self.num_known[row] = token_ids.size
        self.block_table[row, : block_ids.size] = block_ids
        self.num_blocks[row] = block_ids.size
        self.num_prompt_tokens[row] = new.num_prompt_tokens
        self.index_origins[row] = new.num_prompt_tokens - new.first_output_index
        self.run[row] = new.run
        self.is_used[row] = True
        self.is_constrained[row] = new.is_constrained
        self.has_constrained_rows |= new.is_constrained
        self.sampling.place(new)

    def _append_blocks(self, rows: Int32s, block_ids: Int32s) -> None:
        """Blocks of one row keep their order; a row may get several."""
        if rows.size != block_ids.size:
            raise ProtocolViolation(f"block_rows has {rows.size} entries, block_ids {block_ids.size}")
        self._check_rows(rows, "block_rows")
        order = np.argsort(rows, kind="stable")
        ordered = rows[order]
        is_first = np.r_[True, ordered[1:] != ordered[:-1]]
        group_start = np.maximum.accumulate(np.where(is_first, np.arange(rows.size), 0))
        columns = self.num_blocks[ordered] + (np.arange(rows.size) - group_start)
        if columns.max() >= self.max_blocks:
            raise ProtocolViolation(f"row {ordered[columns.argmax()]} gets more than its {self.max_blocks} blocks")
        self.block_table[ordered, columns] = block_ids[order]
        np.add.at(self.num_blocks, rows, 1)
