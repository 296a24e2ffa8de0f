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
_TOKEN, _KEY, _BEFORE, _AFTER, _PREVIOUS = 0, 1, 2, 3, 4
"""Columns of `SharedTokens.ring`."""
_OWN, _SHARED = np.int64(0), np.int64(1)
"""Where occurrences are: numbers, for of a bool that stands in the source numba compiles two functions."""
_STEPS, _STEPS_PER_OCCURRENCE = 64, 4
"""So much of a chain is walked at most, for each occurrence that may be found: other n-grams are in it, by chance or
malice."""


@compiled
def draft_suffixes(batch, token_ids, own, shared, work, min_own, min_shared):
    """batch: `speculative.row_buffers.Batch`; token_ids: int32 [max_num_seqs, width]; own, shared, work: `OwnTokens`,
    `SharedTokens`, `Workspace` of `speculative.suffix_arrays`. Returns how many drafts there are."""
    drafts, num_rows = batch.drafts, batch.num_rows[0]
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
            count, score = _best_path(_OWN, tokens, length, found, limit, min_own, shared, work)
            for place in range(count):
                drafts[filled + place] = work.path[place]
            most = work.places.size / (work.places.size + 1.0)
            if shared.row_keys[row] != 0 and limit * most > score:
                found = _find_shared(tokens, row, length, shared, min_shared, work)
                shared_count, shared_score = _best_path(_SHARED, tokens, length, found, limit, min_shared, shared, work)
                if shared_score > score:
                    count = shared_count
                    for place in range(count):
                        drafts[filled + place] = work.path[place]
        batch.counts[i] = count
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
    key, ring = shared.row_keys[row], shared.ring
    if key == 0:
        return
    last_slot, last_bucket = len(ring) - 1, np.uint64(shared.heads.size - 1)
    for end in range(np.int64(shared.row_taken[row]), np.int64(length)):
        serial = shared.next_serial[0]
        shared.next_serial[0] = serial + 1
        before = shared.row_last[row]
        if before <= serial - len(ring):  # it is just being overwritten, or there was none
            before = np.int64(0)
        if before > 0:
            ring[before & last_slot, _AFTER] = serial
        place = ring[serial & last_slot]
        place[_TOKEN], place[_KEY], place[_BEFORE], place[_AFTER], place[_PREVIOUS] = tokens[end], key, before, 0, 0
        if end - size + 1 >= shared.row_starts[row]:
            bucket = np.int64(_hash(tokens, end, size, np.uint64(key)) & last_bucket)
            place[_PREVIOUS] = shared.heads[bucket]
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
    key, ring = shared.row_keys[row], shared.ring
    last_slot, oldest = len(ring) - 1, max(shared.next_serial[0] - len(ring), np.int64(1))
    bucket = np.int64(_hash(tokens, length - 1, size, np.uint64(key)) & np.uint64(shared.heads.size - 1))
    at = shared.heads[bucket]
    found, max_found, max_matched = 0, work.places.size, work.by_matched.size - 1
    steps = _STEPS + _STEPS_PER_OCCURRENCE * max_found
    while at >= oldest and found < max_found and steps > 0:
        place = ring[at & last_slot]
        if place[_KEY] == key and place[_AFTER] > 0:
            matched, earlier = 0, at
            while (
                earlier >= oldest
                and matched < max_matched
                and matched < length
                and ring[earlier & last_slot, _TOKEN] == tokens[length - 1 - matched]
            ):
                matched += 1
                earlier = ring[earlier & last_slot, _BEFORE]
            if matched >= size:
                work.places[found], work.matched[found] = place[_AFTER], matched
                found += 1
        at = place[_PREVIOUS]
        steps -= 1
    return found


@compiled
def _best_path(source, tokens, length, num_found, limit, size, shared, work):
    """Of the paths behind all occurrences that match at least so far, the one with the highest score; of equal ones
    that with the longer match. A shorter match is tried where at least twice as many have it: all paths together follow
    each occurrence twice at most. Returns (the path's length, its score); it is in work.path."""
    by_matched, max_matched = work.by_matched, work.by_matched.size - 1
    for matched in range(max_matched + 1):
        by_matched[matched] = 0
    for i in range(num_found):
        by_matched[work.matched[i]] += 1
    best_count, best_score, num_alive, num_tried = 0, 0.0, 0, 0
    for matched in range(max_matched, size - 1, -1):
        if by_matched[matched] == 0:
            continue
        num_alive += by_matched[matched]
        if num_alive < 2 * num_tried:
            continue
        num_tried = num_alive
        max_tokens = min(limit, np.int64(matched * work.factor[0] + 1e-6))
        if max_tokens * (num_found / (num_found + 1.0)) <= best_score:
            break  # for no shorter match can do better
        alive = 0
        for i in range(num_found):
            if work.matched[i] >= matched:
                work.alive[alive] = work.places[i]
                alive += 1
        count, score = _path(source, tokens, length, num_alive, max_tokens, shared, work)
        if score > best_score:
            best_count, best_score = count, score
            for place in range(count):
                work.path[place] = work.trial[place]
    return best_count, best_score


@compiled
def _path(source, tokens, length, num_alive, max_tokens, shared, work):
    """Follows the most frequent token of all that are alive while its probability holds. Returns (tokens, score)."""
    ring = shared.ring
    count, score, probability, num_parents = 0, 0.0, 1.0, num_alive + 1
    while count < max_tokens and num_alive > 0:
        for i in range(num_alive):
            work.tokens[i] = _token_at(source, tokens, length, work.alive[i], shared, work)
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
                work.alive[alive] = place + 1 if source == _OWN else ring[place & (len(ring) - 1), _AFTER]
                alive += 1
        num_parents = num_alive = alive
    return count, score


@compiled
def _token_at(source, tokens, length, place, shared, work):
    if source == _OWN:
        return tokens[place] if place < length else work.trial[place - length]
    return np.int32(shared.ring[place & (len(shared.ring) - 1), _TOKEN]) if place > 0 else _ENDED


@compiled
def _most_frequent(num_tokens, work):
    """(how often, which) of work.tokens; of equally frequent ones that of the latest occurrence; (0, -1) of none."""
    first, num_first = work.tokens[0], 0
    for i in range(num_tokens):
        num_first += work.tokens[i] == first
    if 2 * num_first > num_tokens and first != _ENDED:
        return num_first, first
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
