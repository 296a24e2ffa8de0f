"""`callboard explain ID`: where the time of a running server's request went, and what it waits for."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from ..client import AsyncClient, ChoiceExplanation, RequestExplanation
from ..errors import ConfigError, RequestError
from ..mailbox.messages.requests import PreemptionRecord, RequestLedger, WaitTime
from .ledger_screen import format_ledger
from .screens import plain


def explain_request(request_id: str, url: str, api_key_file: Path | None) -> int:
    """Print it, or why there is nothing. Returns the exit status."""
    try:
        api_key = None if api_key_file is None else _key_in(api_key_file)
        told = asyncio.run(_ask(request_id, url, api_key))
    except (RequestError, ConfigError) as error:
        print(plain(str(error)), file=sys.stderr)
        return 1
    print("\n".join(plain(line) for line in explanation_lines(told)))
    return 0


def _key_in(path: Path) -> str:
    """The first word of a file, so that no key shows in a list of processes. Raises ConfigError."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        # Not the error's own words: those of a decoding error show bytes of the file.
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"--api-key-file {str(path)!r} cannot be read: {reason}") from None
    if not words:
        raise ConfigError(f"--api-key-file {str(path)!r} holds no key")
    return words[0]


async def _ask(request_id: str, url: str, api_key: str | None) -> RequestExplanation:
    async with AsyncClient(url, api_key) as client:
        return await client.explain(request_id)


def explanation_lines(told: RequestExplanation) -> list[str]:
    """The request, then each of its choices; what the server knows of it stands around the scheduler's part."""
    lines = [f"{told.id}: {told.state}, {told.total_s:,.3f} s{_named(told.x_request_id)}"]
    if told.write_s:
        lines.append(f"  {told.write_s * 1e3:,.1f} ms of them waiting for the client to take what was made")
    for choice in told.choices:
        ledger = ledger_of(choice)
        lines += format_ledger(told.id, ledger, _lived_ns(ledger))
        around = {
            "before that: reading the request": choice.receive_s,
            "behind its end: to the client": choice.deliver_s,
            "not known any more": choice.unknown_s,
        }
        lines += [f"  {seconds * 1e3:>9,.1f} ms  {what}" for what, seconds in around.items() if seconds]
        if choice.finish_reason is not None:
            lines.append(f"  finish reason: {choice.finish_reason}")
    if told.choices_left_out:
        lines.append(f"{told.choices_left_out:,} choices more are not told")
    return lines


def ledger_of(choice: ChoiceExplanation) -> RequestLedger:
    """The scheduler's part, as that has it; its clock begins when the request was submitted."""
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
        num_chunks=choice.num_chunks,
        num_preemptions=choice.num_preemptions,
    )


def _lived_ns(ledger: RequestLedger) -> int:
    """All of its parts together."""
    waited: tuple[int, ...] = msgspec.structs.astuple(ledger.waiting)
    return ledger.queued_ns + sum(waited) + ledger.prefill_ns + ledger.decode_ns


def _named(x_request_id: str | None) -> str:
    return f" (X-Request-Id {x_request_id})" if x_request_id else ""


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
