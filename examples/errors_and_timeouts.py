"""What goes wrong, by kind; time limits; repetitions; leaving early.

python examples/errors_and_timeouts.py [URL]
"""

import asyncio
import sys

from callboard import AsyncClient, Timeouts
from callboard.errors import InvalidRequest, Overloaded, RequestError, TimeLimitExceeded, UnknownModel, Unreachable


async def main(url: str) -> None:
    # Repetitions are off unless they are asked for; a request that may have begun is never sent again.
    async with AsyncClient(url, timeouts=Timeouts(connect_s=5, chunk_s=30), max_retries=2) as client:
        try:
            await client.complete_whole("Hello", temperature=-1)
        except InvalidRequest as error:
            print(f"400, field {error.param}: {error}")
        try:
            await client.complete_whole("Hello", model="gpt-none")
        except UnknownModel as error:
            print(f"404: {error}")
        try:
            await client.complete("Hello", max_tokens=500, timeouts=Timeouts(total_s=0.001)).answer()
        except TimeLimitExceeded as error:
            print(f"limit {error.limit}: {error}")
        async with client.complete("Hello", max_tokens=500) as stream:
            async for _ in stream:
                break
        print("left early: the server has aborted the request")
        try:
            answer = await client.complete_whole("Hello", max_tokens=4)
            print(f"answer: {answer.text!r}")
        except Overloaded as error:
            print(f"full even after two more trials; come again in {error.retry_after_s} s")
        except RequestError as error:  # every kind of failure of a call
            print(f"{type(error).__name__}: {error}")

    async with AsyncClient("http://127.0.0.1:1") as nowhere:
        try:
            await nowhere.models()
        except Unreachable as error:
            print(f"unreachable: {error}")


if __name__ == "__main__":
    asyncio.run(main(*(sys.argv[1:] or ["http://127.0.0.1:8000"])))
