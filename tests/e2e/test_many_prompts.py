"""As many prompts in one request as an idle engine holds are served, and one more can never be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard.tests.e2e.null_engine import ALL_APART, null_server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("topology", [None, ALL_APART])
def test_a_request_of_as_many_prompts_as_the_engine_holds_is_served(
    null_model: Path, send: Callable[..., Any], topology: str | None
) -> None:
    settings = ("scheduler.max_queued_requests=8", "scheduler.max_num_seqs=32")
    with null_server(null_model, *settings, topology=topology) as server:
        url = server.url + "/v1/completions"
        answer = send(url, {"prompt": [[1, 2, 3]] * 40, "max_tokens": 1})
        assert answer.status == 200, answer.text
        assert [choice["index"] for choice in answer.json["choices"]] == list(range(40))
        too_many = send(url, {"prompt": [[1, 2, 3]] * 41, "max_tokens": 1})
        assert (too_many.status, too_many.error["param"]) == (400, "prompt")
