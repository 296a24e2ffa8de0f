"""`callboard chat`: a conversation with a running server, in the terminal."""

from __future__ import annotations

import asyncio
import sys

from ..client import AsyncClient
from ..errors import CallboardError


def chat_loop(url: str, temperature: float, max_tokens: int) -> int:
    """Read lines, stream answers; an empty line, end of file or Ctrl-C ends it. Ctrl-C in an answer aborts the answer.

    Lines are read in the main thread: one that waits for a line cannot be interrupted elsewhere.
    """
    messages: list[dict[str, object]] = []
    with asyncio.Runner() as runner:
        while line := _ask():
            messages.append({"role": "user", "content": line})
            answer: list[str] = []
            try:
                runner.run(_answer(url, messages, temperature, max_tokens, answer))
            except KeyboardInterrupt:
                pass  # what there is of the answer stays in the conversation
            except CallboardError as error:
                print(f"\n{error}", file=sys.stderr)
                return 1
            print()
            messages.append({"role": "assistant", "content": "".join(answer)})
    return 0


async def _answer(
    url: str, messages: list[dict[str, object]], temperature: float, max_tokens: int, answer: list[str]
) -> None:
    async with AsyncClient(url) as client:
        async for delta in client.chat(messages, temperature=temperature, max_tokens=max_tokens):
            answer.append(delta.text)
            print(delta.text, end="", flush=True)


def _ask() -> str:
    """The next line; bytes that are no text become U+FFFD."""
    try:
        return input("> ").strip().encode(errors="surrogateescape").decode(errors="replace")
    except (EOFError, KeyboardInterrupt):
        print()
        return ""
