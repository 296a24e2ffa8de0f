"""Who asks: the tenant that the API key of an HTTP request belongs to, and what that may do."""

from __future__ import annotations

from aiohttp import web

from ..errors import InvalidRequest
from .api_keys import ApiKeys
from .tenants import ANY, MAX_TENANT_CHARS, is_tenant_name

TENANT = "x-tenant"


class Callers:
    """Reads keys and headers. Without keys every client is as one whose key may act for any tenant."""

    def __init__(self, api_keys: ApiKeys | None) -> None:
        self._api_keys = api_keys

    def check(self, request: web.Request) -> str:
        """The tenant of the request's key, or `ANY`. Raises RequestError (401)."""
        return ANY if self._api_keys is None else self._api_keys.check(request.headers.get("Authorization"))

    def tenant_of(self, request: web.Request, field: str | None) -> str:
        """The tenant of a generating request; `field`: the one in its body. Raises InvalidRequest."""
        caller = self.check(request)
        if caller != ANY:
            if field not in (None, caller):
                raise InvalidRequest(
                    f"tenant: the API key decides whose request it is, here {caller!r}; leave it out", param="tenant"
                )
            return caller
        for param, name in ((TENANT, request.headers.get(TENANT)), ("tenant", field)):
            if name is None:
                continue
            if not is_tenant_name(name) or name == ANY:
                raise InvalidRequest(
                    f"{param}: a tenant's name is 1 to {MAX_TENANT_CHARS} visible ASCII characters, and not {ANY!r}",
                    param=param,
                )
            return name
        return ""

    def can_see(self, caller: str, tenant: str) -> bool:
        """Whether a caller is told of a tenant's requests."""
        return caller in (ANY, tenant)
