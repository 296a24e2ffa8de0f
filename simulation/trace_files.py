"""Reading traces: the Azure and Mooncake formats, and Callboard's own.

| format   | file  | a line                                                                                          |
|----------|-------|-------------------------------------------------------------------------------------------------|
| Azure    | CSV   | head `ms,context_tokens,generated_tokens` or `TIMESTAMP,ContextTokens,GeneratedTokens`          |
| Mooncake | JSONL | `{"t": ms, "in": n, "out": n, "h": [[first id, count], ...]}`, 512 tokens an id; or as they are |
|          |       | published: `{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id, ...]}`    |
| own      | JSONL | `OwnLine` below                                                                                 |

The format is told from the first line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import islice
from pathlib import Path

import msgspec

from ..errors import ConfigError
from .trace import DEFAULT_PREFIX_BLOCK_TOKENS, TraceRequest

NS_PER_MS = 1_000_000


class OwnLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request in Callboard's own format; all but the first and the output's length may be left out."""

    arrival_ms: float
    output_tokens: int
    prompt_tokens: int | None = None
    """Length; may be left out beside `prompt_token_ids`."""
    prompt_token_ids: tuple[int, ...] = ()
    tenant: str = ""
    priority: int = 0
    """Lower is more urgent."""
    deadline_ms: float | None = None
    """After its arrival."""
    prefix_ids: tuple[int, ...] = ()
    """Prompts that begin with the same ids share so many times `prefix_block_tokens` tokens."""
    prefix_block_tokens: int = DEFAULT_PREFIX_BLOCK_TOKENS


class _MooncakeLine(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


class _ShortMooncakeLine(msgspec.Struct, frozen=True):
    t: float
    num_prompt_tokens: int = msgspec.field(name="in")
    num_output_tokens: int = msgspec.field(name="out")
    runs: tuple[tuple[int, int], ...] = msgspec.field(name="h")


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first `limit` requests of a file, sorted by arrival. Raises ConfigError that names file, line and fault."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            head = file.readline()
            file.seek(0)
            if head.lstrip().startswith("{"):
                requests = list(islice(_read_json_lines(path, head, file), limit))
            else:
                requests = list(islice(_read_csv(path, file), limit))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", advice="name a CSV or JSONL trace") from error
    if not requests:
        raise ConfigError(f"{path} holds no requests", advice="name a CSV or JSONL trace")
    return sorted(requests, key=lambda request: request.arrival_ns)


def _read_json_lines(path: Path, head: str, lines: Iterable[str]) -> Iterator[TraceRequest]:
    if '"hash_ids"' in head:
        read = _original_mooncake
    elif '"t"' in head:
        read = _short_mooncake
    else:
        read = _own
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                request = read(line)
                _check(request)
            except (msgspec.MsgspecError, ValueError) as error:
                raise _bad_line(path, number, str(error)) from error
            yield request


def _original_mooncake(text: str) -> TraceRequest:
    line = msgspec.json.decode(text, type=_MooncakeLine)
    return TraceRequest(
        round(line.timestamp * NS_PER_MS), line.input_length, line.output_length, prefix_ids=line.hash_ids
    )


def _short_mooncake(text: str) -> TraceRequest:
    line = msgspec.json.decode(text, type=_ShortMooncakeLine)
    ids = tuple(first + i for first, count in line.runs for i in range(count))
    return TraceRequest(round(line.t * NS_PER_MS), line.num_prompt_tokens, line.num_output_tokens, prefix_ids=ids)


def _own(text: str) -> TraceRequest:
    line = msgspec.json.decode(text, type=OwnLine)
    num_prompt_tokens = len(line.prompt_token_ids) if line.prompt_tokens is None else line.prompt_tokens
    if line.prompt_token_ids and len(line.prompt_token_ids) != num_prompt_tokens:
        raise ValueError(f"prompt_tokens is {num_prompt_tokens}, prompt_token_ids has {len(line.prompt_token_ids)}")
    return TraceRequest(
        arrival_ns=round(line.arrival_ms * NS_PER_MS),
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=line.output_tokens,
        tenant=line.tenant,
        priority=line.priority,
        deadline_ns=None if line.deadline_ms is None else round(line.deadline_ms * NS_PER_MS),
        prefix_ids=line.prefix_ids,
        prefix_block_tokens=line.prefix_block_tokens,
        token_ids=line.prompt_token_ids,
    )


def _read_csv(path: Path, lines: Iterable[str]) -> Iterator[TraceRequest]:
    begin: datetime | None = None
    columns: list[str] = []
    for number, row in enumerate(csv.reader(lines), start=1):
        if number == 1:
            columns = row
            if [name.lower().replace("_", "") for name in row][1:] != ["contexttokens", "generatedtokens"]:
                raise _bad_line(path, 1, "the head is not that of an Azure trace")
            continue
        if not row:
            continue
        try:
            if columns[0] == "ms":
                arrival_ns = round(float(row[0]) * NS_PER_MS)
            else:
                at = datetime.fromisoformat(row[0][:26])  # 100 ns ticks are cut to microseconds
                begin = begin or at
                arrival_ns = round((at - begin).total_seconds() * 1e9)
            request = TraceRequest(arrival_ns, int(row[1]), int(row[2]))
            _check(request)
        except (ValueError, IndexError) as error:
            raise _bad_line(path, number, str(error)) from error
        yield request


def _check(request: TraceRequest) -> None:
    if request.arrival_ns < 0 or request.num_prompt_tokens < 1 or request.num_output_tokens < 1:
        raise ValueError("the arrival is below 0, or the prompt or the output has no token")
    if request.prefix_block_tokens < 1:
        raise ValueError("prefix_block_tokens is below 1")


def _bad_line(path: Path, number: int, cause: str) -> ConfigError:
    return ConfigError(
        f"{path}, line {number}: {cause}", advice="docs/simulator.md lists the formats of traces, with their fields"
    )
