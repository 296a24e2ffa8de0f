"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidRequest


class StopStrings:
    """Gives text on until a stop string is complete, and never a part of one, or, with `keeps_match`, up to its end.

    The match is the stop string that is complete first; of several that end at the same character, the longest. So the
    result does not depend on how the text is cut, and nothing waits once a stop string is there. (Of "abc" and "b", the
    text "abc" stops at "b" and shows "a".) Each string has a Knuth-Morris-Pratt automaton: time is linear in the text.
    """

    def __init__(self, stops: Sequence[str], *, keeps_match: bool = False) -> None:
        """`keeps_match`: the stop string belongs to the text, so nothing needs to be held back.

        Raises InvalidRequest for an empty stop string.
        """
        if not all(stops):
            raise InvalidRequest("stop must not hold an empty string", param="stop")
        # The longest first: the first one that is complete at a character is then the longest.
        self._stops = sorted(dict.fromkeys(stops), key=len, reverse=True)
        self._failures = [_failure(stop) for stop in self._stops]
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._matched = [0] * len(self._stops)
        """Of each stop string, how many first characters the text ends with."""
        self._keeps_match = keeps_match
        self._held = ""
        """Text kept back: as much as the longest of `_matched`; nothing with `keeps_match`."""
        self.match: str | None = None
        """The stop string that was found."""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may be shown, and the stop string if it was found; the shown text ends before it, or with it.

        After a match every call gives ("", match).
        """
        if self.match is not None:
            return "", self.match
        if not self._stops:
            return text, None
        if self._is_untouched_by(text):
            return text, None
        for index, character in enumerate(text):
            found = self._step(character)
            if found is not None:
                self.match = found
                seen = self._held + text[: index + 1]
                self._held = ""
                return seen if self._keeps_match else seen[: len(seen) - len(found)], found
        return self._show(text), None

    def pass_by(self, text: str) -> str:
        """Text that may be shown, of a piece in which no stop string counts; one that only begins in it does."""
        if not self._stops or self._is_untouched_by(text):
            return text
        for character in text:
            self._step(character)
        return self._show(text)

    def finish(self) -> str:
        """The text kept back, when no more comes."""
        held, self._held = self._held, ""
        return held

    def _is_untouched_by(self, text: str) -> bool:
        """The usual case: no stop string has begun and none begins in `text`."""
        return self._first_characters.isdisjoint(text) and not any(self._matched)

    def _show(self, text: str) -> str:
        """What may be shown once the automata have moved over `text`."""
        if self._keeps_match:
            return text
        seen = self._held + text
        num_shown = len(seen) - max(self._matched)
        self._held = seen[num_shown:]
        return seen[:num_shown]

    def _step(self, character: str) -> str | None:
        """Moves all automata over one character; the longest stop string that it completes."""
        matched = self._matched
        found = None
        for number, (stop, failure) in enumerate(zip(self._stops, self._failures, strict=True)):
            length = matched[number]
            while length and stop[length] != character:
                length = failure[length - 1]
            if stop[length] == character:
                length += 1
                if length == len(stop):
                    found = found or stop
                    length = failure[-1]
            matched[number] = length
        return found


def _failure(stop: str) -> list[int]:
    """[i]: length of the longest proper prefix of `stop` that is a suffix of its first i + 1 characters."""
    failure = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[length] != stop[index]:
            length = failure[length - 1]
        if stop[length] == stop[index]:
            length += 1
        failure[index] = length
    return failure
