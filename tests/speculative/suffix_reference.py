"""Suffix decoding in plain lists: every occurrence is looked for token by token, every path is followed by counting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from callboard.speculative.suffix_tree import SuffixOptions

NextToken = Callable[[list[int], int], int | None]
"""(the path so far, how many tokens behind the occurrence) -> the token there, if one is known."""


@dataclass
class _Request:
    key: str | None = None
    num_given: int = 0
    shared: list[int] = field(default_factory=list)
    """Serials of its output."""


class ReferenceSuffix:
    """The interface of `SuffixProposer` over lists."""

    def __init__(self, options: SuffixOptions) -> None:
        self._options = options
        self._capacity = max((2**i for i in range(20) if 2**i <= options.max_cached_tokens), default=0)
        self._requests: dict[int, _Request] = {}
        self._output: list[tuple[_Request, int, int]] = []
        """Of all requests with a key that ever were: (request, place in its output, token)."""

    def follow(self, row: int, num_given_tokens: int, sharing_key: str | None) -> None:
        self._requests[row] = _Request(sharing_key, num_given_tokens)

    def forget(self, row: int) -> None:
        self._requests.pop(row, None)

    def propose(self, rows: Sequence[tuple[int, list[int], int]]) -> list[list[int]]:
        """(row, its known tokens, max_drafts) each."""
        for row, tokens, _ in rows:
            request = self._requests.get(row, _Request())
            if request.key is not None:
                for token in tokens[request.num_given + len(request.shared) :]:
                    self._output.append((request, len(request.shared), token))
                    request.shared.append(len(self._output) - 1)
        return [self._drafts(self._requests.get(row, _Request()), tokens, limit) for row, tokens, limit in rows]

    def _drafts(self, request: _Request, tokens: list[int], limit: int) -> list[int]:
        own_score, own = self._best(self._own(tokens), limit)
        shared_score, shared = self._best(self._shared(request, tokens), limit) if request.key is not None else (0, [])
        return shared if shared_score > own_score else own

    def _match(self, before: list[int], tokens: list[int]) -> int:
        """How many tokens at the ends are equal."""
        matched = 0
        while matched < min(len(before), len(tokens), self._options.max_match):
            if before[-1 - matched] != tokens[-1 - matched]:
                break
            matched += 1
        return matched

    def _own(self, tokens: list[int]) -> list[tuple[int, NextToken]]:
        found: list[tuple[int, NextToken]] = []
        for end in range(len(tokens) - 1, 0, -1):
            matched = self._match(tokens[:end], tokens)
            if matched >= self._options.min_match:
                found.append((matched, lambda path, offset, end=end: (tokens + path)[end + offset]))
        return found[: self._options.max_occurrences]

    def _shared(self, request: _Request, tokens: list[int]) -> list[tuple[int, NextToken]]:
        oldest = max(len(self._output) - self._capacity, 0)
        found: list[tuple[int, NextToken]] = []
        for serial in range(len(self._output) - 1, oldest - 1, -1):
            other, place, _ = self._output[serial]
            if other.key != request.key or place + 1 == len(other.shared):
                continue
            text = [self._output[each][2] for each in other.shared[: place + 1] if each >= oldest]
            matched = self._match(text, tokens)
            if matched >= self._options.min_shared_match:
                rest = [self._output[each][2] for each in other.shared[place + 1 :]]
                found.append((matched, lambda path, offset, rest=rest: rest[offset] if offset < len(rest) else None))
        return found[: self._options.max_occurrences]

    def _best(self, found: list[tuple[int, NextToken]], limit: int) -> tuple[float, list[int]]:
        best: tuple[float, list[int]] = (0.0, [])
        num_tried = 0
        for length in sorted({matched for matched, _ in found}, reverse=True):
            voters = [next_token for matched, next_token in found if matched >= length]
            if len(voters) < 2 * num_tried:
                continue
            num_tried = len(voters)
            score, path = self._path(voters, min(limit, int(length * self._options.spec_factor + 1e-6)))
            if score > best[0]:
                best = score, path
        return best

    def _path(self, voters: list[NextToken], limit: int) -> tuple[float, list[int]]:
        score, probability, path, num_parents = 0.0, 1.0, [], len(voters) + 1
        while len(path) < limit:
            ballots = [(next_token(path, len(path)), next_token) for next_token in voters]
            counts = Counter(token for token, _ in ballots if token is not None)  # in the order of the occurrences
            if not counts:
                break
            (token, count), *_ = counts.most_common()  # of equal ones the first that was met
            probability *= count / num_parents
            if probability < self._options.min_probability:
                break
            path.append(token)
            score += probability
            voters = [next_token for voted, next_token in ballots if voted == token]
            num_parents = count
        return score, path
