"""A streaming session: the text goes on behind what is sent, and what stands before is not computed again.

python examples/session.py [URL]
"""

import asyncio
import sys

from callboard import AsyncClient
from callboard.client import Session

LINES = ["The first thing to know about Paris is", " The second one is", " And the last one is"]


async def read_turn(session: Session) -> None:
    async for delta in session.turn():
        print(delta.text, end="", flush=True)
        if delta.usage is not None:  # in the last delta of the turn
            cached = delta.usage.prompt_tokens_details
            num_cached = 0 if cached is None else cached.cached_tokens
            print(
                f"\n[{delta.finish_reason}, {delta.usage.prompt_tokens} tokens before it, {num_cached} of them cached]"
            )


async def main(url: str) -> None:
    first, *others = LINES
    async with AsyncClient(url) as client, client.session(first, temperature=0, max_tokens=16) as session:
        print(f"> {first}")
        await read_turn(session)
        for line in others:
            print(f">{line}")
            await session.send(line, last=line == LINES[-1])
            await read_turn(session)


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["http://127.0.0.1:8000"])))
