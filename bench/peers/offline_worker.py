"""Drives an engine in its own interpreter: orders come as lines of JSON, times go back as lines of JSON.

    python -P offline_worker.py ENGINE_FILE ARGUMENT...

Standard library only, for it runs where Callboard is not installed. ENGINE_FILE defines `load(arguments)`, which
returns when the engine has made its first token, with a function of (prompts, concurrency, output_len) that gives for
each prompt (sent, first token, last token, number of tokens), in seconds since it was called.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence

Stream = tuple[float, float, float, int]
Run = Callable[[Sequence[Sequence[int]], int, int], list[Stream]]


def serve_lines(load: Callable[[Sequence[str]], Run], arguments: Sequence[str]) -> None:
    """Until standard input ends. What the engine prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run = load(arguments)
    print("{}", file=answers)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            streams = run(order["prompts"], order["concurrency"], order["output_len"])
            print(json.dumps({"streams": streams}), file=answers)
        except Exception as error:  # the edge of the process: the other side is told, and goes on with the next point
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers)


def seconds_since(begun: float) -> float:
    return time.perf_counter() - begun


def main() -> None:
    spec = importlib.util.spec_from_file_location("engine", sys.argv[1])
    assert spec is not None and spec.loader is not None
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    serve_lines(engine.load, sys.argv[2:])


if __name__ == "__main__":
    main()
