"""Bias, masks and penalties of a step: gathered from its rows on the host, applied to their logits all at once.

Only rows whose requests ask for any have a `RowLogits`; a step without such rows does nothing here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..kernels.bitmask_words import narrow
from ..kernels.masks import add_bias, allow_only, forbid
from ..kernels.penalties import penalize
from ..mailbox.messages.steps import StepPlan
from .input_batch import InputBatch, Int32s, Int64s
from .prepare_inputs import StepInputs
from .row_logits import RowLogits, has_row_logits
from .sampler import Array
from .token_counts import Float32s
from .token_masks import TokenMasks

PIECE_LOGITS = 1 << 19
"""Logits that are changed at a time: some rows may list the whole vocabulary."""
Place = Callable[[NDArray[np.int64] | NDArray[np.float32]], Array]
"""An array of the host -> the same beside the logits."""
ApplyMasks = Callable[[Array, Int64s, Int32s], None]
"""(logits, rows of logits, words): what `kernels.token_bitmask` describes; the last two are the host's."""
_NONE: Int64s = np.zeros(0, np.int64)


class LogitChanges:
    """The `RowLogits` of the persistent batch."""

    def __init__(self, batch: InputBatch, vocab_size: int, place: Place, apply_masks: ApplyMasks) -> None:
        self._batch, self._vocab_size, self._place, self._apply_masks = batch, vocab_size, place, apply_masks
        self._rows: dict[int, RowLogits] = {}

    def apply(self, plan: StepPlan) -> None:
        """Follow the rows of a plan that the batch has applied."""
        if self._rows:
            for row in np.frombuffer(plan.removed_rows, np.int32).tolist():
                self._rows.pop(row, None)
        for new in plan.new_rows:
            if has_row_logits(new.sampling):
                prompt_ids = self._batch.token_ids[new.row, : new.num_prompt_tokens]
                self._rows[new.row] = RowLogits(new.sampling, prompt_ids, self._vocab_size)
            else:
                self._rows.pop(new.row, None)

    def clear(self) -> None:
        """Forget every row."""
        self._rows.clear()

    def change(
        self, logits: Array, inputs: StepInputs, masks: TokenMasks | None = None, *, keeps_raw: bool = True
    ) -> dict[int, Array]:
        """logits: float32 [k, vocab] of the rows that sample; changed in place. Returns of those whose own logits are
        wanted and were changed, if `keeps_raw`: index into the k rows -> float32 [vocab].

        Bitmasks come last, `narrow`ed: what is forbidden stays so, and each row has an allowed token to choose."""
        if not self._rows and masks is None:
            return {}
        arrays, rows = self._batch.sampling, inputs.sample_rows
        wants_raw = arrays.has_logprobs[rows] & ~arrays.has_processed_logprobs[rows] & keeps_raw
        positions = inputs.sample_positions.tolist()
        masked: set[int] = set()
        if masks is not None:
            self.narrow(masks, rows, inputs.sample_positions)
            masked.update(masks.indexes.tolist())
        raw: dict[int, Array] = {}
        edits = _Edits()
        num_drafts = _drafts_before(inputs)
        for index, row in enumerate(rows.tolist() if self._rows else ()):
            if (row_logits := self._rows.get(row)) is not None:
                first = self._batch.num_prompt_tokens[row]
                output = self._batch.token_ids[row, first : positions[index]]
                edits.collect(index, row_logits, output, num_drafts[index], is_masked=index in masked)
                if edits.num_entries >= PIECE_LOGITS:
                    raw |= edits.apply_to(logits, wants_raw, self._place)
                    edits = _Edits()
        raw |= edits.apply_to(logits, wants_raw, self._place)
        if masks is not None and masks.indexes.size:
            if kept := [index for index in masked if wants_raw[index] and index not in raw]:
                raw |= dict(zip(kept, logits[kept], strict=True))
            self._apply_masks(logits, masks.indexes, masks.words)
        return raw

    def narrow(self, masks: TokenMasks, rows: Int32s, positions: Int32s) -> None:
        """Take out of the masks what the requests forbid beside them, unless that leaves nothing.

        rows, positions: int32 [k], of the rows that sample."""
        for index, words in zip(masks.indexes.tolist() if self._rows else (), masks.words, strict=False):
            if (row_logits := self._rows.get(row := int(rows[index]))) is not None:
                output = self._batch.token_ids[row, self._batch.num_prompt_tokens[row] : positions[index]]
                narrow(words, *row_logits.masks_at(output))


def _drafts_before(inputs: StepInputs) -> list[int]:
    """Of each of the k places that are sampled for, how many drafts stand before it."""
    counts = inputs.sample_counts
    if counts is None:
        return [0] * inputs.sample_rows.size
    places: list[int] = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)).tolist()
    return places


class _Entries:
    """Pairs of row and token id, with numbers beside; `kernels.masks` says what an entry is."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self._token_ids: list[Int32s | Int64s] = []
        self._values: list[Float32s] = []

    def add(self, row: int, token_ids: Int32s | Int64s, values: Float32s | None = None) -> None:
        if token_ids.size:
            self.rows.append(row)
            self._token_ids.append(token_ids)
            if values is not None:
                self._values.append(values)

    def entries(self, place: Place) -> tuple[Array, Array]:
        """(rows, token ids), int64 [m] each; there are some."""
        rows = np.repeat(np.array(self.rows, np.int64), [ids.size for ids in self._token_ids])
        return place(rows), place(np.concatenate(self._token_ids, dtype=np.int64))

    def values(self, place: Place) -> Array:
        """float32 [m]"""
        return place(np.concatenate(self._values))

    def repeat(self, numbers: list[float], place: Place) -> Array:
        """A number a row -> a number an entry, float32 [m]."""
        return place(np.repeat(np.array(numbers, np.float32), [ids.size for ids in self._token_ids]))


class _Edits:
    """What some rows of a step change."""

    def __init__(self) -> None:
        self.num_entries = 0
        self._changed: list[int] = []
        """Rows with any entry, ascending."""
        self._bias, self._allowed, self._forbidden, self._used = _Entries(), _Entries(), _Entries(), _Entries()
        self._penalized: list[RowLogits] = []
        """Of the rows of `_used`."""

    def collect(self, index: int, row: RowLogits, output: Int32s, num_drafts: int, *, is_masked: bool) -> None:
        """`output`: the row's tokens after the prompt, before the one to be sampled, of which the last num_drafts are
        drafts; is_masked: a mask has taken up what the row forbids."""
        allowed, forbidden = (_NONE, _NONE) if is_masked else row.masks_at(output)
        self._bias.add(index, row.bias_ids, row.bias)
        self._allowed.add(index, allowed)
        self._forbidden.add(index, forbidden)
        num_entries = row.bias_ids.size + allowed.size + forbidden.size
        if row.counts is not None:
            if num_drafts:
                used, counts = row.counts.with_more(output[output.size - num_drafts :])
            else:
                row.counts.count(output)
                used, counts = row.counts.token_ids, row.counts.counts
            if used.size:
                self._used.add(index, used, counts)
                self._penalized.append(row)
                num_entries += used.size
        if num_entries:
            self._changed.append(index)
            self.num_entries += num_entries

    def apply_to(self, logits: Array, wants_raw: NDArray[np.bool_], place: Place) -> dict[int, Array]:
        """Bias, masks, penalties, in this order. Returns copies of the rows that change and are wanted, bool [k]."""
        kept = [index for index in self._changed if wants_raw[index]]
        raw = dict(zip(kept, logits[kept], strict=True)) if kept else {}
        if self._bias.rows:
            add_bias(logits, *self._bias.entries(place), self._bias.values(place))
        if self._allowed.rows:
            limited = place(np.array(self._allowed.rows, np.int64))
            allow_only(logits, limited, *self._allowed.entries(place))
        if self._forbidden.rows:
            forbid(logits, *self._forbidden.entries(place))
        if self._used.rows:
            used, all_sampling = self._used, [row.sampling for row in self._penalized]
            penalize(
                logits,
                *used.entries(place),
                used.values(place),
                repetition=used.repeat([sampling.repetition_penalty for sampling in all_sampling], place),
                frequency=used.repeat([sampling.frequency_penalty for sampling in all_sampling], place),
                presence=used.repeat([sampling.presence_penalty for sampling in all_sampling], place),
            )
        return raw
