"""Whose request it is.

With a keys file the key says it: its line may name the tenant (`KEY NAME`), and a key without a name is a tenant of its
own. A key with the name `*` is a gateway's: it may act for every tenant, as every client may where there are no keys.
Such a caller says whose a request is in the header `x-tenant`, which a proxy may set and which goes first, or in the
field `tenant`; without either it is the nameless tenant's.
"""

from __future__ import annotations

import hashlib
import re

ANY = "*"
"""In place of a name in the keys file."""
MAX_TENANT_CHARS = 128

_NAME = re.compile(rf"[\x21-\x7e]{{1,{MAX_TENANT_CHARS}}}")
_NUM_DIGITS = 8


def is_tenant_name(name: str) -> bool:
    """1 to 128 visible ASCII characters: fit for a header, a log line and a metric's label."""
    return _NAME.fullmatch(name) is not None


def name_of_key(key: bytes) -> str:
    """The tenant of a key without a name: the same in every process, and too short to find the key by."""
    return "key-" + hashlib.sha256(b"callboard tenant\0" + key).hexdigest()[:_NUM_DIGITS]
