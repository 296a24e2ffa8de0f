"""Bearer keys: with a keys file in the topology every path under /v1 needs one of them."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import stat
from pathlib import Path

from ..errors import ConfigError, RequestError

logger = logging.getLogger("callboard.server")


class ApiKeys:
    """The keys that are let in. Only their digests are kept, and no answer, log line or `repr` holds a key."""

    def __init__(self, keys: tuple[bytes, ...]) -> None:
        self._digests = tuple(_digest(key) for key in keys)

    def check(self, authorization: str | None) -> None:
        """Raises RequestError (401) unless the header is `Bearer KEY` with a known key.

        The time that it takes tells nothing of the keys: digests have one length, each is compared in constant time,
        and all are, whether or not one has matched.
        """
        scheme, _, key = (authorization or "").partition(" ")
        given = _digest(key.strip().encode("utf-8", "replace"))
        is_known = False
        for digest in self._digests:
            is_known |= hmac.compare_digest(given, digest)
        if scheme.lower() != "bearer" or not is_known:
            raise RequestError(
                "a valid API key is needed: send the header Authorization: Bearer KEY",
                status=401,
                type="authentication_error",
                code="invalid_api_key",
            )


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
    keys = tuple(line.strip().encode() for line in lines if line.strip())
    if not keys:
        raise ConfigError(f"server.api_keys_file {path!r} holds no key", advice="write one key a line, or leave it out")
    return ApiKeys(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
