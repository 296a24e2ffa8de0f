"""A peer that serves HTTP: a command with a free port in it, asked until it answers."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from ..load import StreamTimes
from .child import Child, ChildPeer
from .http_load import completion_body, run_http_load
from .peer import FIRST_PROMPT, Kind, PeerFailed

_POLL_S = 0.02
_START_LIMIT_S = 600.0


class HttpPeer(ChildPeer):
    """Serves /v1/completions on the port that its command names."""

    kind: Kind = "http"

    def __init__(
        self, name: str, command: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None
    ) -> None:
        """`command`: of the port."""
        self.name = name
        self._command, self._environment = command, environment or {}
        self._port = 0

    def start(self) -> float:
        self._port = _free_port()
        begun = time.perf_counter()
        self._child = Child(self._command(self._port), environment=self._environment, pipes=False)
        try:
            while not self._answers():
                if self._child.process.poll() is not None:
                    raise self._child.fail(f"ended with status {self._child.process.returncode} before it served")
                if time.perf_counter() - begun > _START_LIMIT_S:
                    raise self._child.fail(f"serves nothing after {_START_LIMIT_S:.0f} s")
                time.sleep(_POLL_S)
            return time.perf_counter() - begun
        except BaseException:
            self.stop()
            raise

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[StreamTimes]:
        bodies = [completion_body(prompt, output_len) for prompt in prompts]
        return run_http_load(f"http://127.0.0.1:{self._port}", bodies, concurrency, output_len)

    def _answers(self) -> bool:
        """One token, if it serves already. Raises PeerFailed if it does and refuses."""
        body = json.dumps({"prompt": FIRST_PROMPT, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        try:
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if response.status == 400:
            raise PeerFailed(f"refuses its first request: {answer.decode(errors='replace')}")
        return response.status == 200


def _free_port() -> int:
    """Free now: other servers' commands cannot take a port that the kernel chooses and say which it was."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
        return port
