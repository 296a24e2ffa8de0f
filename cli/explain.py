"""`callboard explain ID`: where the time of a running server's request went, and what it waits for."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from ..client import AsyncClient, ChoiceExplanation, RequestExplanation
from ..errors import RequestError
from ..mailbox.messages.requests import PreemptionRecord, RequestLedger, WaitTime
from .ledger_screen import ledger_lines
from .screens import plain


def explain_request(request_id: str, url: str, api_key_file: Path | None) -> int:
    """Print it, or why there is nothing. Returns the exit status."""
    try:
        told = asyncio.run(_ask(request_id, url, api_key_file))
    except (RequestError, OSError, UnicodeDecodeError, IndexError) as error:
        if isinstance(error, UnicodeDecodeError | IndexError):
            error = RequestError(f"{api_key_file} holds no key")
        print(plain(str(error)), file=sys.stderr)
        return 1
    print("\n".join(plain(line) for line in explanation_lines(told)))
    return 0


async def _ask(request_id: str, url: str, api_key_file: Path | None) -> RequestExplanation:
    api_key = None if api_key_file is None else api_key_file.read_text(encoding="utf-8").split()[0]
    async with AsyncClient(url, api_key) as client:
        return await client.explain(request_id)


def explanation_lines(told: RequestExplanation) -> list[str]:
    """The request, then each of its choices; what the server knows of it stands around the scheduler's part."""
    lines = [f"{told.id}: {told.state}, {told.total_s:,.3f} s" + _named(told.x_request_id)]
    if told.write_s:
        lines.append(f"  {told.write_s * 1e3:,.3f} ms of it waiting for the client to take what was made")
    for choice in told.choices:
        lines += ["", *ledger_lines(ledger_of(choice))]
        around = {
            "reading the request": choice.receive_s,
            "from its end to the client": choice.deliver_s,
            "not known, for it is forgotten": choice.unknown_s,
        }
        lines += [f"  and {name}: {seconds * 1e3:,.3f} ms" for name, seconds in around.items() if seconds]
        if choice.finish_reason is not None:
            lines.append(f"  finish reason: {choice.finish_reason}")
    return lines


def ledger_of(choice: ChoiceExplanation) -> RequestLedger:
    """The scheduler's part, as it has it; its clock begins when the request was submitted."""
    waiting = msgspec.structs.asdict(choice.waiting_s)
    return RequestLedger(
        choice=choice.index,
        state=choice.state,
        arrival_ns=0,
        queued_ns=_nanoseconds(choice.tokenize_s),
        ended_ns=None,
        waiting=WaitTime(**{f"{name}_ns": _nanoseconds(seconds) for name, seconds in waiting.items()}),
        prefill_ns=_nanoseconds(choice.prefill_s),
        decode_ns=_nanoseconds(choice.decode_s),
        num_prompt_tokens=choice.prompt_tokens or 0,
        num_output_tokens=choice.completion_tokens,
        num_cached_tokens=choice.cached_tokens,
        chunks=choice.chunks,
        preemptions=tuple(PreemptionRecord(p.step, p.cause, p.lost_tokens) for p in choice.preemptions),
        num_recomputed_tokens=choice.recomputed_tokens,
        num_draft_tokens=choice.draft_tokens,
        num_accepted_tokens=choice.accepted_tokens,
        waits_for=choice.waits_for or "",
    )


def _named(x_request_id: str | None) -> str:
    return f" (X-Request-Id {x_request_id})" if x_request_id else ""


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
