"""Prompt lookup over the rows of a batch, compiled: what followed the last n-gram of a row when it last occurred."""

from __future__ import annotations

import numpy as np

from .compiled import compiled


@compiled
def look_up_ngrams(batch, token_ids, min_ngram, max_ngram, most):
    """As `speculative.ngram.NgramProposer.propose`. batch: `speculative.row_buffers.Batch`; token_ids: int32
    [max_num_seqs, width]; most: drafts of a row. Returns how many drafts there are."""
    filled, drafts = 0, batch.drafts
    for i in range(batch.num_rows[0]):
        tokens, length = token_ids[batch.rows[i]], np.int64(batch.lengths[i])
        num_drafts = min(np.int64(batch.max_drafts[i]), most)
        start = _last_continuation(tokens, length, min_ngram, max_ngram) if num_drafts > 0 else -1
        if start < 0:
            batch.counts[i] = 0
            continue
        for offset in range(num_drafts):
            place = start + offset  # behind the known tokens the drafts themselves go on: a pattern repeats
            drafts[filled + offset] = tokens[place] if place < length else drafts[filled + place - length]
        batch.counts[i] = num_drafts
        filled += num_drafts
    return filled


@compiled
def _last_continuation(tokens, length, min_ngram, max_ngram):
    """Where the tokens behind the latest of the longest occurrences begin, or -1. It may overlap the end itself."""
    if length <= min_ngram:
        return -1
    last, longest, found = tokens[length - 1], 0, -1
    place = length - 2
    while place >= longest:  # in front of it there is no longer one
        if tokens[place] == last:
            matched = 1
            while matched < max_ngram and matched <= place and tokens[place - matched] == tokens[length - 1 - matched]:
                matched += 1
            if matched > longest:
                longest, found = matched, place + 1
                if matched == max_ngram:
                    break
        place -= 1
    return found if longest >= min_ngram else -1
