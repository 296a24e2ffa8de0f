"""Server-sent events out of bytes that may be cut anywhere."""

from __future__ import annotations


class EventParser:
    """Collects the `data:` lines of events; comments and other fields are passed over. Lines end with LF or CRLF."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes, in order; several data lines are joined by LF."""
        search_from = len(self._rest)
        self._rest += received
        events: list[bytes] = []
        start = 0
        while (end := self._rest.find(b"\n", max(start, search_from))) >= 0:
            line = bytes(self._rest[start:end]).removesuffix(b"\r")
            start = end + 1
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
        del self._rest[:start]
        return events
