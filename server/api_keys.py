"""Bearer keys: with a keys file in the topology every path under /v1 needs one of them.

A line of the file is `KEY`, or `KEY TENANT`; `tenants.py` says what a tenant is.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..errors import ConfigError, RequestError
from .tenants import ANY, is_tenant_name, name_of_key

logger = logging.getLogger("callboard.server")


class ApiKeys:
    """The keys that are let in. Only their digests are kept, and no answer, log line or `repr` holds a key."""

    def __init__(self, keys: Iterable[bytes], names: Mapping[bytes, str] | None = None) -> None:
        """`names`: tenants of keys that have a name."""
        tenants = {_digest(key): (names or {}).get(key, name_of_key(key)) for key in keys}
        self._digests = tuple(tenants)
        self._tenants = ("", *tenants.values())

    def check(self, authorization: str | None) -> str:
        """The key's tenant, or `ANY`. Raises RequestError (401) unless the header is `Bearer KEY` with a known key.

        The time that it takes tells nothing of the keys: digests have one length, each is compared in constant time,
        and all are, whether or not one has matched.
        """
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip().encode("utf-8", "replace"))
        number = 0
        for index, digest in enumerate(self._digests, 1):
            number += index * hmac.compare_digest(given, digest)
        if scheme.lower() != "bearer" or not number:
            raise RequestError(
                "a valid API key is needed: send the header Authorization: Bearer KEY",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )
        return self._tenants[number]


def read_api_keys(path: str | None) -> ApiKeys | None:
    """Keys from a file, one a line, empty lines apart; None without a file.

    A file that every user of the machine can read is used with a warning (secrets mounted into a container often are);
    one that every user can write is refused. Raises ConfigError.
    """
    if path is None:
        return None
    try:
        with Path(path).open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        # Not the error's own words: those of a decoding error show bytes of the file.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"server.api_keys_file {path!r} cannot be read: {reason}") from None
    if stat.S_ISREG(mode) and mode & stat.S_IWOTH:
        raise ConfigError(
            f"server.api_keys_file {path!r} can be written by every user of this machine (mode {mode & 0o777:03o})",
            advice="chmod 600 it, and make sure that its keys are yours",
        )
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        logger.warning(
            "server.api_keys_file_is_readable_by_all path=%r mode=%03o advice='chmod 600'", path, mode & 0o777
        )
    keys, names = _parse(path, lines)
    if not keys:
        raise ConfigError(f"server.api_keys_file {path!r} holds no key", advice="write one key a line, or leave it out")
    return ApiKeys(keys, names)


def _parse(path: str, lines: Iterable[str]) -> tuple[list[bytes], dict[bytes, str]]:
    """The keys, and the names of those that have one. Raises ConfigError, whose words hold nothing of a line."""
    keys: dict[bytes, str | None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        key, *rest = line.split()
        if len(rest) > 1 or (rest and not is_tenant_name(rest[0])):
            raise ConfigError(
                f"server.api_keys_file {path!r}: line {number} is neither KEY nor KEY TENANT",
                advice=f"a tenant's name is visible ASCII characters without a space, or {ANY} for a key that may act "
                "for any tenant",
            )
        name = rest[0] if rest else None
        if keys.setdefault(key.encode(), name) != name:
            raise ConfigError(
                f"server.api_keys_file {path!r}: line {number} gives a key another tenant than a line before",
                advice="keep one of them",
            )
    return list(keys), {key: name for key, name in keys.items() if name is not None}


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
