"""The load generator of the overload run, against a server over a frontend without an engine."""

from __future__ import annotations

from fake_frontend import delta, finish

from callboard.bench.open_loop import LoadGenerator, completion_requests, poisson_arrivals
from callboard.bench.overload import LoadResult, percentile
from callboard.errors import Overloaded


async def test_answers_of_both_kinds(serve, frontend):
    def script(stream):
        if len(frontend.streams) % 2 == 0:
            raise Overloaded("full", retry_after_s=3)
        stream.push(delta("x" * 100_000, [1]), delta("y", [2], end=finish()))

    frontend.script = script
    requests = completion_requests(20, input_len=4, output_len=2, vocab_size=90)
    async with LoadGenerator(await serve()) as generator:
        outcomes = await generator.closed_loop(requests, 1)
        outcomes += await generator.open_loop(requests, [0.001 * i for i in range(20)])
    assert sorted(outcome.status for outcome in outcomes) == [200] * 20 + [429] * 20
    assert all(0 < outcome.first_s <= outcome.end_s for outcome in outcomes)
    assert {outcome.retry_after_s for outcome in outcomes if outcome.status == 429} == {3}
    result = LoadResult(4, outcomes)
    assert (len(result.accepted), len(result.refused)) == (20, 20)
    assert "20 refused (50.0%), 0 failed" in result.lines()


def test_requests_have_forced_lengths_and_different_prompts():
    requests = completion_requests(50, input_len=4, output_len=10, vocab_size=90, is_mixed=True)
    assert len(set(requests)) == 50
    assert {int(request.split(b'"max_tokens":')[1].split(b",")[0]) for request in requests} <= set(range(5, 16))


def test_arrivals_are_those_of_a_poisson_process():
    """Mean and variance of the number in a second are the rate."""
    times = poisson_arrivals(20, 2000, seed=1)
    assert times == sorted(times)
    assert times[-1] < 2000
    counts = [0] * 2000
    for time_s in times:
        counts[int(time_s)] += 1
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    assert abs(mean - 20) < 5 * (20 / 2000) ** 0.5
    assert abs(variance - 20) < 5 * 20 * (2 / 2000) ** 0.5


def test_percentiles():
    values = list(range(1, 101))
    assert [percentile(values, q) for q in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7.0], 50) == 7.0
