"""Bearer keys: with a keys file in the topology every path under /v1 needs one of them."""

from __future__ import annotations

import hmac
from pathlib import Path

from ..errors import ConfigError, RequestError


class ApiKeys:
    """The keys that are let in; compared in constant time."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._keys = keys

    def check(self, authorization: str | None) -> None:
        """Raises RequestError (401) unless the header is `Bearer KEY` with a known key."""
        scheme, _, key = (authorization or "").partition(" ")
        given = key.strip().encode("utf-8", "replace")
        known = [hmac.compare_digest(given, key) for key in self._keys]
        if scheme.lower() != "bearer" or not any(known):
            raise RequestError(
                "a valid API key is needed: send the header Authorization: Bearer KEY",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )


def read_api_keys(path: str | None) -> ApiKeys | None:
    """Keys from a file, one a line, empty lines apart; None without a file. Raises ConfigError."""
    if path is None:
        return None
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"server.api_keys_file {path!r} cannot be read: {error}") from error
    keys = tuple(line.strip().encode() for line in lines if line.strip())
    if not keys:
        raise ConfigError(f"server.api_keys_file {path!r} holds no key", advice="write one key a line, or leave it out")
    return ApiKeys(keys)
