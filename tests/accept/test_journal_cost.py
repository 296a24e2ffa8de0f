"""What a journal costs of the control plane's step. `make accept`."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.bench.journal import measure
from callboard.bench.journal_in_engine import running_engines
from callboard.bench.machine import describe_machine

pytestmark = [pytest.mark.accept, pytest.mark.timeout(600)]

NUM_STREAMS = 16
MAX_SHARE = 0.02


def test_a_journal_costs_less_than_2_percent_of_the_control_planes_step(tmp_path: Path) -> None:
    journal = measure(NUM_STREAMS, tmp_path)
    with running_engines() as engines:
        control = engines.measure(NUM_STREAMS)
    share = journal.journal_us / control.median_us
    print(
        f"\n{describe_machine()}\n{NUM_STREAMS} streams: the journal {journal.journal_us:.2f} us a step, the control "
        f"process {control.median_us:.0f} us of CPU without it: {share:.2%}\nwith - without, pairs: "
        f"{control.differences()} us\nof the scheduler's own step, {journal.without_us:.0f} us: "
        f"{journal.journal_us / journal.without_us:.1%}"
    )
    assert share < MAX_SHARE
