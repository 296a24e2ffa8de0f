"""Several answers to one prompt in one stream, and token ids in and out.

python examples/choices_and_token_ids.py [URL]
"""

import asyncio
import sys

from callboard import AsyncClient


async def main(url: str) -> None:
    async with AsyncClient(url) as client:
        texts: dict[int, str] = {}
        async for delta in client.complete("Once upon a time", n=3, seed=7, max_tokens=12):
            texts[delta.choice] = texts.get(delta.choice, "") + delta.text
        for choice, text in sorted(texts.items()):
            print(f"choice {choice}: {text!r}")

        first = await client.complete_whole("Once upon a time", temperature=0, max_tokens=6)
        prompt_ids = first.choices[0].prompt_token_ids or []
        print("prompt ids", prompt_ids, "output ids", first.token_ids)
        # Token ids are continued as they are: nothing is encoded again.
        second = await client.complete_whole(prompt_ids + first.token_ids, temperature=0, max_tokens=6)
        print(f"{first.text!r} goes on with {second.text!r}")


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["http://127.0.0.1:8000"])))
