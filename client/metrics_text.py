"""The Prometheus text format, as far as values by name go."""

from __future__ import annotations

from ..errors import MalformedAnswer


def parse_metrics(body: bytes) -> dict[str, float]:
    """`name` or `name{labels}` -> value, of lines without timestamps. Raises MalformedAnswer."""
    samples: dict[str, float] = {}
    for line in body.decode(errors="replace").splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, value = line.rpartition(" ")
        try:
            samples[name] = float(value)
        except ValueError:
            raise MalformedAnswer(f"/metrics has a line that cannot be read: {line[:200]!r}") from None
    return samples
