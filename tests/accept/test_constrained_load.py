"""Streams under a grammar, and schemas that explode, beside free streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bench.constrained_load import run

pytestmark = [pytest.mark.accept, pytest.mark.timeout(1200)]


def test_free_streams_do_not_notice_those_under_a_grammar(smollm2_gguf: Path) -> None:
    result = run(str(smollm2_gguf), (), num_pairs=7, num_streams=16, num_tokens=192)
    print("\n".join(result.lines()))
    assert result.ratio("constrained") <= 1.05
    assert result.ratio("bombs") <= 1.05
