"""Texts that are waited for in a stream of tokens, wherever the tokens cut them."""

from __future__ import annotations

from .backend import Int32s
from .token_index import TokenIndex


class EndMarker:
    """The end of a free text. A token may complete it only with its last byte, so that what follows begins with a
    token of its own; of special tokens those are free that are a piece of it.

    The state is the number of the marker's bytes that the text ends with (Knuth, Morris, Pratt).
    """

    def __init__(self, text: str, index: TokenIndex) -> None:
        self._data = text.encode()
        self._index = index
        self._borders = _borders(self._data)
        self._masks: dict[int, Int32s] = {}
        self._containing = [i for i in index.text_ids if self._data in index.token_bytes(i)]

    @property
    def whole(self) -> int:
        """The state in which the marker is there."""
        return len(self._data)

    def after(self, state: int, token_id: int) -> int | None:
        """The state behind the token; None if it is not allowed."""
        data = self._index.token_bytes(token_id)
        following = self.after_bytes(state, data) if data else None
        if following is not None and token_id in self._index.special and following < len(data):
            return None
        return following

    def after_bytes(self, state: int, data: bytes) -> int | None:
        """The state behind them; None if the marker is whole before their end."""
        for byte in data:
            if state == len(self._data):
                return None
            while state and self._data[state] != byte:
                state = self._borders[state - 1]
            state += self._data[state] == byte
        return state

    def mask(self, state: int) -> Int32s:
        """What is allowed in the state, not `whole`. Not to be changed."""
        if state not in self._masks:
            in_doubt = {*self._containing, *self._index.special}
            begun = state
            while begun:
                in_doubt.update(self._index.beginning_with(self._data[begun:]))
                begun = self._borders[begun - 1]
            self._masks[state] = self._index.text_mask({i: self.after(state, i) is not None for i in in_doubt})
        return self._masks[state]


class BeginMarker:
    """The beginning of an answer, behind which a text is free up to its end marker. Where it holds the text of a
    special token, that token alone stands for it.

    The state is the number of the marker's bytes that are there.
    """

    def __init__(self, text: str, end: EndMarker, index: TokenIndex) -> None:
        self._data = text.encode()
        self._end = end
        self._index = index
        self._masks: dict[int, Int32s] = {}
        self._is_special = [False] * len(self._data)
        for token_id in index.special:
            size, at = len(index.token_bytes(token_id)), self._data.find(index.token_bytes(token_id))
            if at >= 0:
                self._is_special[at : at + size] = [True] * size

    def after(self, state: int, token_id: int) -> tuple[int | None, int | None]:
        """The state behind the token, or the one of the end marker once the beginning is whole; None, None if the
        answer does not go on with this beginning."""
        data, rest = self._index.token_bytes(token_id), self._data[state:]
        is_special = token_id in self._index.special
        if not data or any(part != is_special for part in self._is_special[state : state + len(data)]):
            return None, None
        if rest.startswith(data) and len(data) < len(rest):
            return state + len(data), None
        if not data.startswith(rest) or (is_special and len(data) > len(rest)):
            return None, None
        return None, self._end.after_bytes(0, data[len(rest) :])

    def mask(self, state: int) -> Int32s:
        """What goes on with the beginning. Not to be changed."""
        if state not in self._masks:
            rest = self._data[state:]
            candidates = self._index.beginning_with(rest)
            for size in range(1, len(rest)):
                candidates += self._index.equal_to(rest[:size])
            goes_on = [token_id for token_id in candidates if self.after(state, token_id) != (None, None)]
            self._masks[state] = self._index.mask(goes_on)
        return self._masks[state]


def _borders(data: bytes) -> list[int]:
    """For each beginning of data: the longest shorter beginning that it ends with."""
    borders = [0]
    for byte in data[1:]:
        border = borders[-1]
        while border and data[border] != byte:
            border = borders[border - 1]
        borders.append(border + (data[border] == byte))
    return borders
