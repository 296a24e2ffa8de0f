"""Stop strings in a text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InvalidRequest


class StopStrings:
    """Gives text on until a stop string is complete, and never a part of one.

    The match is the stop string that is complete first; of several that end at the same character, the longest. So the
    result does not depend on how the text is cut, and nothing waits once a stop string is there. (Of "abc" and "b", the
    text "abc" stops at "b" and shows "a".) Each string has a Knuth-Morris-Pratt automaton: time is linear in the text.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises InvalidRequest for an empty stop string."""
        if not all(stops):
            raise InvalidRequest("stop must not hold an empty string", param="stop")
        # The longest first: the first one that is complete at a character is then the longest.
        self._stops = sorted(dict.fromkeys(stops), key=len, reverse=True)
        self._failures = [_failure(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        """Of each stop string, how many first characters the text ends with."""
        self._held = ""
        """Text kept back: as much as the longest of `_matched`."""
        self.match: str | None = None
        """The stop string that was found."""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that may be shown, and the stop string if it was found; the shown text ends before it.

        After a match every call gives ("", match).
        """
        if self.match is not None:
            return "", self.match
        if not self._stops:
            return text, None
        for index, character in enumerate(text):
            found = self._step(character)
            if found is not None:
                self.match = found
                seen = self._held + text[: index + 1]
                self._held = ""
                return seen[: len(seen) - len(found)], found
        seen = self._held + text
        num_shown = len(seen) - max(self._matched)
        self._held = seen[num_shown:]
        return seen[:num_shown], None

    def finish(self) -> str:
        """The text kept back, when no more comes."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        """Moves all automata over one character; the longest stop string that it completes."""
        matched = self._matched
        for number, (stop, failure) in enumerate(zip(self._stops, self._failures, strict=True)):
            length = matched[number]
            while length and stop[length] != character:
                length = failure[length - 1]
            if stop[length] == character:
                length += 1
                if length == len(stop):
                    return stop
            matched[number] = length
        return None


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
