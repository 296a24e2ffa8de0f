"""GET /v1/requests and /v1/requests/{request_id}: what lives here, and where a request's time goes."""

from __future__ import annotations

import time

from aiohttp import web

from ..actors.frontend_api import FrontendAPI
from ..errors import InvalidRequest
from .callers import Callers
from .http_errors import MAX_PATH_CHARS
from .request_explanations import RequestList, RequestObject, explained, explained_by_scheduler, listed
from .request_records import RequestRecord, RequestRecords
from .service_endpoints import json_response
from .tenants import ANY

MAX_PROMPTS = 16
"""Prompts of one request that the scheduler is asked about: a request has up to a thousand."""


class RequestHandlers:
    """Reads the records that the generating endpoints keep, and asks the scheduler for its part."""

    def __init__(self, frontend: FrontendAPI, records: RequestRecords, callers: Callers) -> None:
        self._frontend = frontend
        self._records = records
        self._callers = callers

    async def requests(self, request: web.Request) -> web.Response:
        """GET /v1/requests: this frontend's requests that have not ended; with keys, those of the key's tenant."""
        caller, now_ns = self._callers.check(request), time.monotonic_ns()
        records = [record for record in self._records.live() if self._callers.can_see(caller, record.tenant)]
        return json_response(RequestList([listed(record, now_ns) for record in records]))

    async def request(self, request: web.Request) -> web.Response:
        """GET /v1/requests/{request_id}: where a request's time went and what it waits for, live or lately ended."""
        name, caller = request.match_info["request_id"], self._callers.check(request)
        records = [record for record in self._records.find(name) if self._callers.can_see(caller, record.tenant)]
        answer = await (self._explain(records[0]) if records else self._ask_scheduler(name, caller))
        if answer is None:
            raise _unknown(name)
        return json_response(answer)

    async def _explain(self, record: RequestRecord) -> RequestObject:
        """One prompt after the other, and of very many the first: the scheduler has other things to do."""
        return explained(record, [await self._frontend.explain(name) for name in record.engine_ids[:MAX_PROMPTS]])

    async def _ask_scheduler(self, name: str, caller: str) -> RequestObject | None:
        """Another frontend may have it; whose it is cannot be told then, so a key of one tenant does not get it."""
        if caller != ANY:
            return None
        explanation = await self._frontend.explain(name)
        return explained_by_scheduler(name, explanation) if explanation.choices else None


def _unknown(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"no request {name[:MAX_PATH_CHARS]!r} is known: give the id of its answer, or the X-Request-Id that it was "
        "sent with; those that ended are forgotten after some time, and with several frontends each knows its own",
        param="request_id",
        code="request_not_found",
        status=404,
    )
