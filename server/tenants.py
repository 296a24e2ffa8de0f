"""Whose request it is.

With a keys file the key says it: its line may name the tenant (`KEY NAME`), and a key without a name is a tenant of its
own. A key with the name `*` is a gateway's: it may act for every tenant, as every client may where there are no keys.
Such a caller says whose a request is in the header `x-tenant`, which a proxy may set and which goes first, or in the
field `tenant`; without either it is the nameless tenant's.
"""

from __future__ import annotations

import hashlib
import re

from aiohttp import web

from ..errors import InvalidRequest

TENANT = "x-tenant"
ANY = "*"
"""In place of a name in the keys file."""
MAX_TENANT_CHARS = 128

_NAME = re.compile(rf"[\x21-\x7e]{{1,{MAX_TENANT_CHARS}}}")
_CALLER = "callboard.caller"
_NUM_DIGITS = 8


def is_tenant_name(name: str) -> bool:
    """1 to 128 visible ASCII characters: fit for a header, a log line and a metric's label."""
    return _NAME.fullmatch(name) is not None


def name_of_key(key: bytes) -> str:
    """The tenant of a key without a name: the same in every process, and too short to find the key by."""
    return "key-" + hashlib.sha256(b"callboard tenant\0" + key).hexdigest()[:_NUM_DIGITS]


def set_caller(request: web.Request, caller: str) -> None:
    """Note whose key it came with; `ANY` where it may say so itself."""
    request[_CALLER] = caller


def caller_of(request: web.Request) -> str:
    """As it was noted."""
    caller = request.get(_CALLER, ANY)
    assert isinstance(caller, str)
    return caller


def tenant_of(request: web.Request, field: str | None) -> str:
    """The tenant of a generating request; `field`: the one in its body. Raises InvalidRequest."""
    caller = caller_of(request)
    if caller != ANY:
        if field not in (None, caller):
            raise InvalidRequest(
                f"tenant: the API key decides whose request it is, here {caller!r}; leave it out", param="tenant"
            )
        return caller
    header = request.headers.get(TENANT)
    for param, name in ((TENANT, header), ("tenant", field)):
        if name is None:
            continue
        if not is_tenant_name(name) or name == ANY:
            raise InvalidRequest(
                f"{param}: a tenant's name is 1 to {MAX_TENANT_CHARS} visible ASCII characters, and not {ANY!r}",
                param=param,
            )
        return name
    return ""


def can_see(caller: str, tenant: str) -> bool:
    """Whether a caller is told of a tenant's requests."""
    return caller in (ANY, tenant)
