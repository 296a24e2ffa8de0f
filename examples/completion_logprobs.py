"""A completion with the log-probability of each token, and the tokens that nearly stood in its place.

python examples/completion_logprobs.py [URL]
"""

import asyncio
import math
import sys

from callboard import AsyncClient


async def main(url: str) -> None:
    async with AsyncClient(url) as client:
        answer = await client.complete_whole("The first three primes are", temperature=0, max_tokens=8, logprobs=3)
    for entry in answer.choices[0].logprobs or []:
        assert entry.logprob is not None  # None is only the first token of an echoed prompt
        others = ", ".join(
            f"{top.token!r} {math.exp(top.logprob):.1%}" for top in entry.top if top.token != entry.token
        )
        print(f"{entry.token!r:>12} {math.exp(entry.logprob):6.1%}   not {others}")


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["http://127.0.0.1:8000"])))
