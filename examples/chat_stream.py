"""A chat over two turns, each answer printed as it comes.

python examples/chat_stream.py [URL]
"""

import asyncio
import sys

from callboard import AsyncClient

QUESTIONS = ["What is the capital of France?", "And of Italy?"]


async def main(url: str) -> None:
    messages: list[dict[str, object]] = []
    async with AsyncClient(url) as client:
        for question in QUESTIONS:
            print(f"\n> {question}")
            messages.append({"role": "user", "content": question})
            answer = ""
            async for delta in client.chat(messages, temperature=0, max_tokens=48):
                answer += delta.text
                print(delta.text, end="", flush=True)
                if delta.usage is not None:  # in the last delta
                    print(f"\n[{delta.finish_reason}, {delta.usage.completion_tokens} tokens]")
            messages.append({"role": "assistant", "content": answer})


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["http://127.0.0.1:8000"])))
