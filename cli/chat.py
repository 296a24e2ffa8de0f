"""`callboard chat`: a conversation with a running server, in the terminal."""

from __future__ import annotations

import asyncio
import sys

from ..client import AsyncClient
from ..errors import CallboardError


def chat_loop(url: str, temperature: float, max_tokens: int) -> int:
    """Read lines, stream answers; an empty line or end of file ends it. Ctrl-C aborts the answer under way."""
    try:
        return asyncio.run(_chat(url, temperature, max_tokens))
    except KeyboardInterrupt:
        print()
        return 0


async def _chat(url: str, temperature: float, max_tokens: int) -> int:
    messages: list[dict[str, object]] = []
    async with AsyncClient(url) as client:
        while True:
            line = await asyncio.to_thread(_ask)
            if not line:
                return 0
            messages.append({"role": "user", "content": line})
            answer = []
            try:
                async for delta in client.chat(messages, temperature=temperature, max_tokens=max_tokens):
                    answer.append(delta.text)
                    print(delta.text, end="", flush=True)
            except CallboardError as error:
                print(f"\n{error}", file=sys.stderr)
                return 1
            print()
            messages.append({"role": "assistant", "content": "".join(answer)})


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""
