"""Suffix decoding over the rows of a batch, compiled: `speculative.suffix_tree` says what it does.

Occurrences of an n-gram are chained, the latest first; the heads of the chains are a hash table. An occurrence is named
by its last token. Everything that a suffix tree's node would count is counted when it is asked for, among the latest
occurrences: a new token costs a hash and two stores.
"""

from __future__ import annotations

import numpy as np

from .compiled import compiled

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_HALF_WORD = np.uint64(32)
_POSITION = np.int64(0xFFFFFFFF)
_ENDED = np.int32(-1)
_STEPS, _STEPS_PER_OCCURRENCE = 64, 4
"""So much of a chain is walked at most, for each occurrence that may be found: other n-grams are in it, by chance or
malice."""


@compiled
def draft_suffixes(num_rows, batch, token_ids, own, shared, work, min_own, min_shared, counts, drafts):
    """batch: `Batch`, the first `num_rows` of each; token_ids: int32 [max_num_seqs, width]; own: `OwnTokens`; shared:
    `SharedTokens`; work: `Workspace`; counts: int32; drafts: int32 [at least the sum of max_drafts], filled from its
    start. Returns how many were filled."""
    for i in range(num_rows):
        row, length = batch.rows[i], batch.lengths[i]
        _take_own(token_ids[row], row, length, own, min_own)
        _take_shared(token_ids[row], row, length, shared, min_shared)
    filled = 0
    for i in range(num_rows):
        row, length, limit = batch.rows[i], batch.lengths[i], min(np.int64(batch.max_drafts[i]), work.path.size)
        count, score = 0, 0.0
        if limit > 0:
            tokens = token_ids[row]
            found = _find_own(tokens, row, length, own, min_own, work)
            count, score = _best_path(True, tokens, length, found, limit, min_own, shared, work)
            for place in range(count):
                drafts[filled + place] = work.path[place]
            if shared.row_keys[row] != np.uint64(0):
                found = _find_shared(tokens, row, length, shared, min_shared, work)
                shared_count, shared_score = _best_path(False, tokens, length, found, limit, min_shared, shared, work)
                if shared_score > score:
                    count = shared_count
                    for place in range(count):
                        drafts[filled + place] = work.path[place]
        counts[i] = count
        filled += count
    return filled


@compiled
def _hash(tokens, end, size, start):
    """Of tokens[end - size + 1 : end + 1]."""
    value = start
    for place in range(end - size + 1, end + 1):
        value = (value ^ np.uint64(np.uint32(tokens[place]))) * _FACTOR
        value ^= value >> _HALF_WORD
    return value


@compiled
def _take_own(tokens, row, length, own, size):
    """Chains all n-grams of the row but the last one, behind which nothing is known yet."""
    wanted = length - 1
    if own.num_taken[row] > wanted or wanted > own.masks[row]:
        width = max(own.masks[row] + 1, 64)
        while width < length:
            width *= 2
        own.masks[row] = min(width, own.heads.shape[1]) - 1
        own.generations[row] += 1  # so that no entry of before counts
        own.num_taken[row] = 0
    mark, mask = np.int64(own.generations[row]) << np.int64(32), np.uint64(own.masks[row])
    for end in range(max(np.int64(own.num_taken[row]), size - 1), wanted):
        bucket = np.int64(_hash(tokens, end, size, np.uint64(0)) & mask)
        head = own.heads[row, bucket]
        own.previous[row, end] = np.int32(head & _POSITION) if head - (head & _POSITION) == mark else np.int32(0)
        own.heads[row, bucket] = mark | np.int64(end + 1)
    own.num_taken[row] = max(wanted, 0)


@compiled
def _take_shared(tokens, row, length, shared, size):
    """Appends what the row has put out, for those of its key."""
    key = shared.row_keys[row]
    if key == np.uint64(0):
        return
    capacity = shared.tokens.size
    mask = np.uint64(shared.heads.size - 1)
    for end in range(shared.row_taken[row], length):
        serial = shared.next_serial[0]
        shared.next_serial[0] = serial + 1
        slot = serial % capacity
        before = shared.row_last[row]
        if before <= serial - capacity:  # it has just been overwritten, or there was none
            before = np.int64(0)
        if before > 0:
            shared.after[before % capacity] = serial
        shared.tokens[slot], shared.keys[slot] = tokens[end], key
        shared.before[slot], shared.after[slot], shared.previous[slot] = before, 0, 0
        if end - size + 1 >= shared.row_starts[row]:
            bucket = np.int64(_hash(tokens, end, size, key) & mask)
            shared.previous[slot] = shared.heads[bucket]
            shared.heads[bucket] = serial
        shared.row_last[row] = serial
    shared.row_taken[row] = max(np.int64(shared.row_taken[row]), np.int64(length))


@compiled
def _find_own(tokens, row, length, own, size, work):
    """Fills work.places, work.matched with the latest occurrences of the row's end; returns how many."""
    if length <= size:
        return 0
    mark = np.int64(own.generations[row]) << np.int64(32)
    bucket = np.int64(_hash(tokens, length - 1, size, np.uint64(0)) & np.uint64(own.masks[row]))
    head = own.heads[row, bucket]
    at = head & _POSITION if head - (head & _POSITION) == mark else np.int64(0)
    found, max_found, max_matched = 0, work.places.size, work.by_matched.size - 1
    steps = _STEPS + _STEPS_PER_OCCURRENCE * max_found
    while at > 0 and found < max_found and steps > 0:
        end, matched = at - 1, 0
        while matched < max_matched and matched <= end and tokens[end - matched] == tokens[length - 1 - matched]:
            matched += 1
        if matched >= size:
            work.places[found], work.matched[found] = end + 1, matched
            found += 1
        at = np.int64(own.previous[row, end])
        steps -= 1
    return found


@compiled
def _find_shared(tokens, row, length, shared, size, work):
    """As `_find_own`, among the tokens of the row's key; places are serials."""
    if length < size:
        return 0
    capacity, key = shared.tokens.size, shared.row_keys[row]
    oldest = max(shared.next_serial[0] - capacity, np.int64(1))
    at = shared.heads[np.int64(_hash(tokens, length - 1, size, key) & np.uint64(shared.heads.size - 1))]
    found, max_found, max_matched = 0, work.places.size, work.by_matched.size - 1
    steps = _STEPS + _STEPS_PER_OCCURRENCE * max_found
    while at >= oldest and found < max_found and steps > 0:
        slot, matched, place = at % capacity, 0, at
        if shared.keys[slot] == key and shared.after[slot] > 0:
            while (
                place >= oldest
                and matched < max_matched
                and matched < length
                and shared.tokens[place % capacity] == tokens[length - 1 - matched]
            ):
                matched += 1
                place = shared.before[place % capacity]
            if matched >= size:
                work.places[found], work.matched[found] = shared.after[slot], matched
                found += 1
        at = shared.previous[slot]
        steps -= 1
    return found


@compiled
def _best_path(is_own, tokens, length, num_found, limit, size, shared, work):
    """Of the paths behind all occurrences that match at least so far, for each so far, the one with the highest score;
    of equal ones that with the longer match. Returns (its length, its score); it is in work.path."""
    by_matched, max_matched = work.by_matched, work.by_matched.size - 1
    for matched in range(max_matched + 1):
        by_matched[matched] = 0
    for i in range(num_found):
        by_matched[work.matched[i]] += 1
    best_count, best_score, num_alive = 0, 0.0, 0
    for matched in range(max_matched, size - 1, -1):
        if by_matched[matched] == 0:
            continue
        num_alive += by_matched[matched]
        max_tokens = min(limit, np.int64(matched * work.factor[0] + 1e-6))
        if max_tokens * (num_found / (num_found + 1.0)) <= best_score:
            break  # for no shorter match can do better
        alive = 0
        for i in range(num_found):
            if work.matched[i] >= matched:
                work.alive[alive] = work.places[i]
                alive += 1
        count, score = _path(is_own, tokens, length, num_alive, max_tokens, shared, work)
        if score > best_score:
            best_count, best_score = count, score
            for place in range(count):
                work.path[place] = work.trial[place]
    return best_count, best_score


@compiled
def _path(is_own, tokens, length, num_alive, max_tokens, shared, work):
    """Follows the most frequent token of all that are alive while its probability holds. Returns (tokens, score)."""
    count, score, probability, num_parents = 0, 0.0, 1.0, num_alive + 1
    while count < max_tokens and num_alive > 0:
        for i in range(num_alive):
            work.tokens[i] = _token_at(is_own, tokens, length, work.alive[i], shared, work)
        num_most, token = _most_frequent(num_alive, work)
        if num_most == 0:
            break
        probability *= num_most / num_parents
        if probability < work.factor[1]:
            break
        work.trial[count] = token
        count += 1
        score += probability
        alive = 0
        for i in range(num_alive):
            if work.tokens[i] == token:
                place = work.alive[i]
                work.alive[alive] = place + 1 if is_own else shared.after[place % shared.tokens.size]
                alive += 1
        num_parents = num_alive = alive
    return count, score


@compiled
def _token_at(is_own, tokens, length, place, shared, work):
    if is_own:
        return tokens[place] if place < length else work.trial[place - length]
    return shared.tokens[place % shared.tokens.size] if place > 0 else _ENDED


@compiled
def _most_frequent(num_tokens, work):
    """(how often, which) of work.tokens; of equally frequent ones that of the latest occurrence; (0, -1) of none."""
    if num_tokens == 1:
        return (1 if work.tokens[0] != _ENDED else 0), work.tokens[0]
    work.stamp[0] += 1
    stamp, mask = work.stamp[0], work.table_tokens.size - 1
    most = 0
    for i in range(num_tokens):
        token = work.tokens[i]
        if token == _ENDED:
            continue
        at = np.int64((np.uint64(np.uint32(token)) * _FACTOR) >> _HALF_WORD) & mask
        while work.table_stamps[at] == stamp and work.table_tokens[at] != token:
            at = (at + 1) & mask
        if work.table_stamps[at] != stamp:
            work.table_stamps[at], work.table_tokens[at], work.table_counts[at] = stamp, token, 0
        work.table_counts[at] += 1
        most = max(most, np.int64(work.table_counts[at]))
    for i in range(num_tokens):
        token = work.tokens[i]
        if token == _ENDED:
            continue
        at = np.int64((np.uint64(np.uint32(token)) * _FACTOR) >> _HALF_WORD) & mask
        while work.table_tokens[at] != token:
            at = (at + 1) & mask
        if work.table_counts[at] == most:
            return most, token
    return 0, _ENDED
