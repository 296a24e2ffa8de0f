"""The simulator's timed points: its speed, and how near it comes to a real engine. `make accept`."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bench.machine import describe_machine
from callboard.bench.simulate import measure
from callboard.bench.simulated_against_measured import MAX_ERROR, compare

pytestmark = [pytest.mark.accept, pytest.mark.timeout(1200)]

TRACES = Path(__file__).parent.parent / "data" / "traces"


@pytest.mark.parametrize("name", ["azure2023_conv_200.csv", "mooncake_conversation_100.jsonl"])
def test_a_simulation_is_at_least_100_times_faster_than_real_time(name: str) -> None:
    best = max((measure(TRACES / name, "h100-sxm") for _ in range(3)), key=lambda speed: speed.ratio)
    print(f"\n{describe_machine()}\n{name}: {best.line()}")
    assert best.ratio >= 100


def test_simulated_ttft_and_tpot_are_within_10_percent_of_measured(smollm2_gguf: Path) -> None:
    print(f"\n{describe_machine()}")
    comparison = compare(str(smollm2_gguf))
    print("\n".join(comparison.lines()))
    assert all(abs(error) <= MAX_ERROR for error in comparison.errors().values())
