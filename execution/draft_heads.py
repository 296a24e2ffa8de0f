"""Drafts by heads that read the target's hidden states: they follow each of its steps, and guess from what they made.

A head's layer has keys and values of its own, in the blocks that rows have anyway (`draft_model`). It computes each
position when the target does, for only then its features are there; so of a prefix that the target found in its cache
it knows what it has computed itself. Where that is not all, the row's context begins behind the prefix: the head
attends to less text, and drafts are the worse for it. What it made of drafts that were rejected is made anew.

A chain of drafts, no tree.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.decoder import Decoder
from ..models.draft_heads import LayerHead, MedusaHeads
from ..speculative.proposer import Float32s, Int32s, ProposedDrafts
from .attention import PagedAttention
from .draft_blocks import DraftBlocks
from .draft_chains import in_order
from .input_batch import InputBatch
from .kv_tensors import KVTensors
from .planned_rows import PlannedRows
from .prepare_inputs import StepInputs, flat_inputs
from .torch_sampler import draw_tokens

_UNKNOWN = -1
Indexes = NDArray[np.intp]


class LayerHeadProposer:
    """One decoder layer, on the CPU that computes the target with torch."""

    def __init__(
        self, head: LayerHead, target: Decoder, batch: InputBatch, kv: KVTensors, *, draws: bool = False
    ) -> None:
        """kv: of one layer; draws: what drafts were drawn from is told."""
        self._head, self._target, self._batch, self._kv, self._draws = head, target, batch, kv, draws
        target.taps = head.taps
        self._blocks = DraftBlocks(batch, kv.num_blocks)
        self._num_there = np.zeros(batch.max_num_seqs, np.int32)
        """Positions that its blocks held when the row came."""
        self._context = np.full(batch.max_num_seqs, _UNKNOWN, np.int32)
        """Where each row's context begins."""
        self._made = torch.zeros(batch.max_num_seqs, target.shape.hidden_size, dtype=target.compute_dtype)
        """Of each row's last element."""
        self._made_at = np.full(batch.max_num_seqs, _UNKNOWN, np.int32)
        """Its position."""

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        self._num_there[row] = self._blocks.enter(row, num_given_tokens)
        self._context[row] = self._made_at[row] = _UNKNOWN

    def forget(self, rows: Int32s) -> None:
        self._context[rows] = self._made_at[rows] = _UNKNOWN

    @torch.inference_mode()
    def observe(self, hidden: Tensor, inputs: StepInputs) -> None:
        """The target has computed a step, and the batch knows what came of it. hidden: [t, hidden_size]."""
        batch, rows, size = self._batch, inputs.rows, self._batch.block_size
        is_new = self._context[rows] == _UNKNOWN
        knows_all = self._num_there[rows] >= inputs.starts
        begins = np.where(knows_all, 0, -(-inputs.starts // size) * size)
        self._context[rows] = np.where(is_new, begins, self._context[rows])
        context = self._context[rows]
        starts = np.maximum(inputs.starts, context)
        ends = np.minimum(inputs.kv_lens, batch.num_known[rows] - 1)  # an element needs the token behind it
        index = np.flatnonzero(ends > starts)
        if not index.size:
            return
        starts, widths = starts[index], (ends - starts)[index]
        firsts = inputs.query_starts[index] + (starts - inputs.starts[index])
        flat = np.repeat(firsts - np.cumsum(widths) + widths, widths) + np.arange(int(widths.sum()))
        there = hidden
        if self._head.taps:
            there = torch.cat([self._target.tapped[layer] for layer in self._head.taps], dim=-1)
        features = self._head.features(there[torch.from_numpy(flat)])
        made = self._advance(rows[index], starts, widths.astype(np.int32), features)
        lasts = torch.from_numpy(np.cumsum(widths) - 1)
        self._made[torch.from_numpy(rows[index].astype(np.int64))] = made[lasts]
        self._made_at[rows[index]] = ends[index] - 1
        for row, end, begin in zip(rows[index].tolist(), ends[index].tolist(), context[index].tolist(), strict=True):
            if begin == 0:
                self._blocks.fill(row, end)

    @torch.inference_mode()
    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """As `Proposer.propose`; behind what is known, drafts stand in token_ids from here on."""
        batch, known = self._batch, num_known[rows]
        num_places = np.minimum(batch.num_blocks[rows] * batch.block_size, batch.max_model_len)
        counts = np.clip(np.minimum(max_drafts, num_places - known + 2), 0, None).astype(np.int32)
        counts[self._made_at[rows] != known - 2] = 0
        drafts = np.zeros((rows.size, max(1, int(counts.max(initial=0)))), np.int32)
        probs: list[tuple[Indexes, Float32s | None]] = []
        made = self._made[torch.from_numpy(rows.astype(np.int64))]
        ones = np.ones(rows.size, np.int32)
        for place in range(drafts.shape[1]):
            going = np.flatnonzero(counts > place)
            if not going.size:
                break
            if place:
                token_ids[rows[going], known[going] + place - 1] = drafts[going, place - 1]
                at = known[going] + place - 2
                made[going] = self._advance(rows[going], at, ones[going], made[going])
            logits = self._head.logits(made[going])
            drafts[going, place], drawn_from = draw_tokens(
                logits, batch, rows[going], known[going] + place, torch.from_numpy, with_probs=self._draws
            )
            probs.append((going, drawn_from))
        flat = drafts[np.arange(drafts.shape[1]) < counts[:, None]]
        return ProposedDrafts(counts, flat, in_order(probs, counts) if self._draws else None)

    def _advance(self, rows: Int32s, starts: Int32s, widths: Int32s, features: Tensor) -> Tensor:
        """Elements starts[i] .. starts[i] + widths[i] - 1 of each row; features: [sum(widths), hidden_size]."""
        context = self._context[rows]
        batch = self._batch if not context.any() else self._behind(rows, context)
        begins = starts - context
        samples = np.zeros(rows.size, np.bool_)
        planned = PlannedRows(rows, self._batch.run[rows], begins, widths, begins + widths, samples)
        inputs = flat_inputs(batch, planned)
        attention = PagedAttention(self._kv, inputs, batch, self._kv.shape, self._target.dtype)
        positions = inputs.positions + np.repeat(context, widths)
        token_ids = self._batch.token_ids[np.repeat(rows, widths), positions + 1].astype(np.int64)
        return self._head.advance(features, torch.from_numpy(token_ids), torch.from_numpy(positions), attention)

    def _behind(self, rows: Int32s, context: Int32s) -> InputBatch:
        """The batch with block tables that begin where contexts do."""
        shifted = copy.copy(self._batch)
        shifted.block_table = self._batch.block_table.copy()
        for row, begin in zip(rows.tolist(), (context // self._batch.block_size).tolist(), strict=True):
            shifted.block_table[row, : shifted.max_blocks - begin] = self._batch.block_table[row, begin:]
        return shifted


class MedusaProposer:
    """Heads without keys and values: each guesses a place from the same hidden state."""

    def __init__(self, heads: MedusaHeads, target: Decoder, batch: InputBatch, *, draws: bool = False) -> None:
        self._heads, self._batch, self._draws = heads, batch, draws
        self._features = torch.zeros(batch.max_num_seqs, target.shape.hidden_size, dtype=target.compute_dtype)
        self._at = np.full(batch.max_num_seqs, _UNKNOWN, np.int32)
        """Position of each row's features."""

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        self._at[row] = _UNKNOWN

    def forget(self, rows: Int32s) -> None:
        self._at[rows] = _UNKNOWN

    @torch.inference_mode()
    def observe(self, hidden: Tensor, inputs: StepInputs) -> None:
        """As `LayerHeadProposer.observe`: the hidden state behind which the row's last token was drawn."""
        at = self._batch.num_known[inputs.rows] - 2
        index = np.flatnonzero((at >= inputs.starts) & (at < inputs.kv_lens))
        places = inputs.query_starts[index] + (at - inputs.starts)[index]
        self._features[torch.from_numpy(inputs.rows[index].astype(np.int64))] = hidden[torch.from_numpy(places)]
        self._at[inputs.rows[index]] = at[index]

    @torch.inference_mode()
    def propose(self, rows: Int32s, token_ids: Int32s, num_known: Int32s, max_drafts: Int32s) -> ProposedDrafts:
        """As `Proposer.propose`, at most as many as there are heads."""
        known = num_known[rows]
        counts = np.minimum(max_drafts, self._heads.num_heads).astype(np.int32)
        counts[self._at[rows] != known - 2] = 0
        features = self._features[torch.from_numpy(rows.astype(np.int64))]
        drafts = np.zeros((rows.size, max(1, int(counts.max(initial=0)))), np.int32)
        probs: list[tuple[Indexes, Float32s | None]] = []
        for place in range(int(counts.max(initial=0))):
            going = np.flatnonzero(counts > place)
            logits = self._heads.logits(features[torch.from_numpy(going)], place)
            drafts[going, place], drawn_from = draw_tokens(
                logits, self._batch, rows[going], known[going] + place, torch.from_numpy, with_probs=self._draws
            )
            probs.append((going, drawn_from))
        flat = drafts[np.arange(drafts.shape[1]) < counts[:, None]]
        return ProposedDrafts(counts, flat, in_order(probs, counts) if self._draws else None)
