"""How a text and a chat become token ids, and back.

python examples/text_and_tokens.py [URL]
"""

import asyncio
import sys

from callboard import AsyncClient

TEXT = "Greetings from Zürich!"


async def main(url: str) -> None:
    async with AsyncClient(url) as client:
        text = await client.tokenize(TEXT, return_token_strs=True)
        print(f"{text.count} of at most {text.max_model_len} tokens:", text.tokens, text.token_strs)
        print("back again:", repr(await client.detokenize(text.tokens)))
        chat = await client.tokenize([{"role": "user", "content": TEXT}], add_generation_prompt=True)
        print(f"as a chat {chat.count} tokens:", repr(await client.detokenize(chat.tokens)))


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["http://127.0.0.1:8000"])))
