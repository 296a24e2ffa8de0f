"""Where the references of a JSON schema lead: within the schema itself, nowhere else. Nothing is ever fetched."""

from __future__ import annotations

from urllib.parse import unquote, urldefrag, urljoin

from ..errors import GrammarRefused
from .json_text import JsonValue
from .schema_keywords import LITERALS

_ROOT = "https://callboard.invalid/schema"
"""The address of a schema that names none. Such a host exists nowhere (RFC 2606)."""


class References:
    """Resources (`$id`) and anchors of a schema, and the base address of every object in it."""

    def __init__(self, root: JsonValue) -> None:
        self._resources: dict[str, JsonValue] = {_ROOT: root}
        self._anchors: dict[tuple[str, str], JsonValue] = {}
        self._bases: dict[int, str] = {}
        self._scan(root, _ROOT)

    def _scan(self, root: JsonValue, base: str) -> None:
        waiting: list[tuple[JsonValue, str]] = [(root, base)]
        while waiting:
            value, base = waiting.pop()
            if isinstance(value, list):
                waiting += [(item, base) for item in value]
            elif isinstance(value, dict):
                base = self._base_of(value, base)
                self._bases[id(value)] = base
                waiting += [(item, base) for name, item in value.items() if name not in LITERALS]

    def _base_of(self, value: dict[str, JsonValue], base: str) -> str:
        for keyword in ("$id", "id"):
            own = value.get(keyword)
            if not isinstance(own, str):
                continue
            address, fragment = urldefrag(own)
            if address:
                base = _joined(base, address)
                self._resources.setdefault(base, value)
            if fragment:
                self._anchors.setdefault((base, fragment), value)
        anchor = value.get("$anchor")
        if isinstance(anchor, str):
            self._anchors.setdefault((base, anchor), value)
        return base

    def target(self, schema: dict[str, JsonValue], reference: str, place: str) -> JsonValue:
        """What `$ref` of `schema`, which stands at `place`, refers to. Raises GrammarRefused if it is not in here."""
        try:
            address, fragment = urldefrag(_joined(self._bases[id(schema)], reference))
        except ValueError as error:
            raise GrammarRefused(f"{place}: $ref {reference[:100]!r} is no address: {error}") from error
        if address not in self._resources:
            raise GrammarRefused(
                f"{place}: $ref {reference[:100]!r} is another document; none is fetched, put it into $defs"
            )
        fragment = unquote(fragment)
        if fragment == "":
            return self._resources[address]
        if not fragment.startswith("/"):
            if (address, fragment) in self._anchors:
                return self._anchors[address, fragment]
        else:
            found = _follow(self._resources[address], fragment)
            if isinstance(found, bool | dict):
                return found
        raise GrammarRefused(f"{place}: $ref {reference[:100]!r} leads to no schema")


def _joined(base: str, reference: str) -> str:
    """As `urljoin`, which knows no URNs."""
    return base + reference if reference.startswith("#") else urljoin(base, reference) or reference


def _follow(value: JsonValue, pointer: str) -> JsonValue:
    """None where there is nothing."""
    for piece in pointer.split("/")[1:]:
        name = piece.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value
