"""Metrics: each count is what its definition says, under its own name and vLLM's; latencies are those of clients."""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from pathlib import Path

import aiohttp
import pytest
from fake_frontend import MODEL, FakeFrontend, delta, finish, serve_fake
from prometheus_client.parser import text_string_to_metric_families

from callboard.actors.frontend_api import Delta
from callboard.actors.grammar_statistics import GrammarStatistics
from callboard.mailbox.messages.requests import Finish, Usage
from callboard.scheduling.statistics import SchedulerStatistics
from callboard.server.histogram import Histogram, token_buckets
from callboard.server.http_metrics import HttpMetrics
from callboard.server.metrics import ServerMetrics
from callboard.server.request_timing import RequestTiming
from callboard.server.vllm_metrics import SHARED_NAMES

BODY = {"prompt": "a"}


async def scrape(http, url, query=""):
    """(name, label values sorted by label) -> value; (name) -> type."""
    async with http.get(f"{url}/metrics{query}") as response:
        assert response.status == 200 and response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(await response.text()))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "one family a name"
    samples = {
        (sample.name, *(sample.labels[label] for label in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }
    return samples, {family.name: family.type for family in families}


def counts(samples, *names):
    return {name: samples[f"callboard:{name}_count",] for name in names}


def by_reason(samples):
    return {key[1]: value for key, value in samples.items() if key[0] == "callboard:request_success_total"}


async def read(http, url, body=BODY):
    async with http.post(url + "/v1/completions", json=body) as response:
        await response.read()
        return response.status


# T01: a hundred requests, of which some are bad, leave early, or are several


async def leave(http, url, frontend, script, *, streams):
    """Send one, and go when the engine has it (and, of a stream, when a chunk has come)."""
    frontend.script = script
    task = asyncio.create_task(http.post(url + "/v1/completions", json={**BODY, "stream": streams}))
    stream = await frontend.arrivals.get()
    if streams:
        response = await task
        await response.content.readuntil(b"\n\n")
        response.close()
    else:
        task.cancel()
    await stream.closed.wait()


async def test_a_hundred_requests_of_many_kinds(serve, frontend):
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        url = await serve()
        before, _ = await scrape(http, url)
        for index in range(60):
            assert await read(http, url, {**BODY, "stream": index % 2 == 0, "max_tokens": 7}) == 200
        for _ in range(5):
            assert await read(http, url, {**BODY, "n": 3}) == 200
        for _ in range(5):
            assert await read(http, url, {"prompt": ["a", "b"]}) == 200
        for _ in range(10):
            assert await read(http, url, {**BODY, "temperature": "hot"}) == 400
        while not frontend.arrivals.empty():
            frontend.arrivals.get_nowait()
        for _ in range(10):
            await leave(http, url, frontend, lambda stream: None, streams=False)
        for _ in range(10):
            await leave(http, url, frontend, lambda stream: stream.push(delta("a", [1])), streams=True)
        after, _ = await scrape(http, url)
    moved = {key: value - before.get(key, 0) for key, value in after.items()}
    assert counts(moved, "time_to_first_token_seconds") == {"time_to_first_token_seconds": 60 + 5 + 5 + 10}
    assert by_reason(moved) == {"stop": 70, "length": 0, "repetition": 0, "timeout": 0, "abort": 20, "error": 0}
    assert set(counts(moved, "e2e_request_latency_seconds", "request_prompt_tokens", "request_params_n").values()) == {
        70
    }
    assert moved["callboard:inter_token_latency_seconds_count",] == 2 * (60 + 5 * 3 + 5 * 2)
    assert moved["callboard:request_time_per_output_token_seconds_count",] == 60 + 5 * 3 + 5 * 2
    assert moved["callboard:request_prompt_tokens_sum",] == 5 * (60 + 5 + 2 * 5)
    assert moved["callboard:request_generation_tokens_sum",] == 3 * (60 + 3 * 5 + 2 * 5)
    assert moved["callboard:request_max_num_generation_tokens_sum",] == 3 * 70
    assert moved["callboard:request_params_n_sum",] == 60 + 5 * 3 + 5
    assert counts(moved, "request_params_max_tokens") == {"request_params_max_tokens": 60}
    assert moved["callboard:request_params_max_tokens_sum",] == 7 * 60
    http_counts = {key[1:]: value for key, value in moved.items() if key[0] == "callboard:http_requests_total"}
    assert http_counts[("/v1/completions", "POST", "400")] == 10
    assert sum(value for key, value in http_counts.items() if key[0] == "/v1/completions") == 100


# Names


async def test_vllms_names_have_the_same_numbers(serve, http, frontend):
    """Under its labels, by the query or by the topology."""
    frontend.statistics = SchedulerStatistics(
        num_running=3, num_waiting=4, num_blocks=8, num_free_blocks=6, num_preemptions=5, prompt_tokens=100,
        generation_tokens=50, prefix_cache_queries=90, prefix_cache_hits=32, num_steps=20, num_admitted=4,
        queue_time_ns=6_000_000_000, num_prefilled=3, prefill_time_ns=1_500_000_000, num_scheduled_tokens=150,
        num_draft_tokens=30, num_accepted_tokens=18,
    )  # fmt: skip
    url = await serve()
    assert await read(http, url) == 200
    plain, _ = await scrape(http, url)
    assert not [key for key in plain if key[0].startswith("vllm:")]
    samples, types = await scrape(http, url, "?compat=vllm")
    labels = ("0", MODEL)
    expected = {
        "num_requests_running": 3, "num_requests_waiting": 4, "kv_cache_usage_perc": 0.25, "num_preemptions_total": 5,
        "prompt_tokens_total": 100, "generation_tokens_total": 50, "prefix_cache_queries_total": 90,
        "prefix_cache_hits_total": 32, "time_to_first_token_seconds_count": 1, "e2e_request_latency_seconds_count": 1,
        "request_prompt_tokens_sum": 5, "request_generation_tokens_sum": 3, "request_params_n_count": 1,
        "request_queue_time_seconds_sum": 6, "request_queue_time_seconds_count": 4,
        "request_prefill_time_seconds_sum": 1.5, "request_prefill_time_seconds_count": 3,
        "iteration_tokens_total_sum": 150, "iteration_tokens_total_count": 20,
        "spec_decode_num_draft_tokens_total": 30, "spec_decode_num_accepted_tokens_total": 18,
    }  # fmt: skip
    assert {name: samples[f"vllm:{name}", *labels] for name in expected} == expected
    assert samples["vllm:request_success_total", "0", "stop", MODEL] == 1
    assert samples["vllm:time_to_first_token_seconds_bucket", "0", "+Inf", MODEL] == 1
    assert samples["callboard:cache_config_info", "8", "False", "8"] == 1
    assert samples["vllm:cache_config_info", "8", "False", "0", MODEL, "8"] == 1
    aliases = {name.removeprefix("vllm:"): kind for name, kind in types.items() if name.startswith("vllm:")}
    assert set(aliases) == SHARED_NAMES
    assert {name: types[f"callboard:{name}"] for name in aliases} == aliases
    by_topology, _ = await scrape(http, await serve(metrics_compat="vllm"))
    assert by_topology["vllm:num_requests_running", *labels] == 3
    without, _ = await scrape(http, await serve(metrics_compat="vllm"), "?compat=none")
    assert not [key for key in without if key[0].startswith("vllm:")]


async def test_the_page_for_people_names_every_metric(serve, http, frontend):
    """And says of each whether it has a name of vLLM's."""
    frontend.grammar = GrammarStatistics()
    _, types = await scrape(http, await serve(), "?compat=vllm")
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    named = {name: row for row in rows for name in re.findall(r"`([a-z_0-9]+)[`{]", row.split("|")[1])}
    own = {name.removeprefix("callboard:"): kind for name, kind in types.items() if not name.startswith("vllm:")}
    shown = {name + ("_total" if kind == "counter" else ""): name for name, kind in own.items()}
    assert set(named) == set(shown)
    assert {shown[name] for name, row in named.items() if row.split("|")[3].strip() == "yes"} == SHARED_NAMES


async def test_other_names_are_refused(serve, http):
    async with http.get(await serve() + "/metrics?compat=sglang") as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["param"] == "compat" and "vllm" in error["message"]


async def test_the_process_is_this_one(serve, http):
    samples, _ = await scrape(http, await serve())
    assert 0 < samples["process_start_time_seconds",] <= time.time()
    assert samples["process_resident_memory_bytes",] > 1 << 20
    assert samples["process_open_fds",] > 0
    assert 0 < samples["process_cpu_seconds_total",] <= sum(os.times()[:2]) + 0.02


async def test_http_requests_have_labels_that_nobody_makes_up(serve, http):
    """A path is the endpoint's template; what is not served has none, and an unknown method no name."""
    url = await serve()
    for method, path in (
        ("GET", f"/v1/models/{MODEL}"), ("GET", "/v1/models/a"), ("GET", "/v1/models/b/c"), ("GET", "/no/such/1"),
        ("GET", "/no/such/2"), ("PROPFIND", "/health"), ("TRACE", "/health"), ("DELETE", "/health"),
        ("HEAD", "/health"),
    ):  # fmt: skip
        async with http.request(method, url + path) as response:
            await response.read()
    samples, _ = await scrape(http, url)
    assert {key[1:]: value for key, value in samples.items() if key[0] == "callboard:http_requests_total"} == {
        ("/v1/models/{model}", "GET", "200"): 1,
        ("/v1/models/{model}", "GET", "404"): 2,
        ("none", "GET", "404"): 2,
        ("none", "other", "405"): 2,
        ("none", "DELETE", "405"): 1,
        ("/health", "HEAD", "200"): 1,
    }


def test_http_metrics_count() -> None:
    metrics = HttpMetrics()
    for _ in range(3):
        metrics.count("/health", "GET", 200)
    (family,) = metrics.families()
    assert [(sample.name, sample.value) for sample in family.samples] == [("callboard:http_requests_total", 3)]


def test_buckets_of_tokens() -> None:
    assert token_buckets(64) == (1, 2, 5, 10, 20, 50, 64)
    assert token_buckets(100) == (1, 2, 5, 10, 20, 50, 100)
    assert token_buckets(1) == (1,)


# Latencies


class Clock:
    """Stands in for `time` in the module that takes the times."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


def counted(histogram: Histogram) -> tuple[list[float], float]:
    """Cumulated counts by bucket, and the sum."""
    family = histogram.family("x", "")
    return [sample.value for sample in family.samples if sample.name == "x_bucket"], family.samples[-1].value


def test_histograms_hold_what_a_list_of_the_same_times_holds(monkeypatch) -> None:
    """1,000 requests of 1 to 3 choices on a clock of the test's own: every bucket, exactly."""
    clock, draw = Clock(), random.Random(5)
    monkeypatch.setattr("callboard.server.request_timing.time", clock)
    metrics = ServerMetrics(FakeFrontend())
    ttft, itl, tpot, decode, e2e = [], [], [], [], []
    for _ in range(1000):
        num_choices = draw.randint(1, 3)
        start_s, tokens = clock.now_s, {choice: [] for choice in range(num_choices)}
        timing = RequestTiming(metrics)
        timing.expect(num_choices)
        for choice in draw.sample(range(num_choices), num_choices) * 3:
            clock.now_s += draw.expovariate(8)
            tokens[choice].append(clock.now_s)
            timing.observe(Delta(choice, len(tokens[choice]) - 1, [1], "a"))
        for choice in range(num_choices):
            clock.now_s += 0.001
            timing.observe(Delta(choice, 3, [], "", Finish("stop", Usage(5, 3, 0))))
        every = sorted(moment for moments in tokens.values() for moment in moments)
        ttft.append(every[0] - start_s)
        decode.append(every[-1] - every[0])
        e2e.append(clock.now_s - start_s)
        for moments in tokens.values():
            itl += [moments[1] - moments[0], moments[2] - moments[1]]
            tpot.append((moments[2] - moments[0]) / 2)
    requests = metrics.requests
    for histogram, values in (
        (requests.time_to_first_token, ttft), (requests.inter_token_latency, itl), (requests.decode_time, decode),
        (requests.time_per_output_token, tpot), (requests.e2e_request_latency, e2e),
    ):  # fmt: skip
        buckets, total = counted(histogram)
        bounds = [*histogram._upper_bounds, float("inf")]
        assert buckets == [sum(value <= bound for value in values) for bound in bounds]
        assert total == pytest.approx(sum(values))


async def test_latencies_lie_between_the_engines_and_the_clients(monkeypatch):
    """By bucket: no faster than the tokens were there, no slower than the client saw them, and each is counted once."""
    frontend, loop, draw = FakeFrontend(), asyncio.get_running_loop(), random.Random(3)
    engine_ttft, client_ttft, engine_e2e, client_e2e = [], [], [], []

    def script(stream):
        submitted_s = time.monotonic()

        def first():
            engine_ttft.append(time.monotonic() - submitted_s)
            stream.push(delta("a", [1]))

        def last():
            engine_e2e.append(time.monotonic() - submitted_s)
            stream.push(delta("b", [2], position=1, end=finish("stop", completion_tokens=2)))

        delay_s = draw.expovariate(50)
        loop.call_later(delay_s, first)
        loop.call_later(delay_s + draw.expovariate(20), last)

    frontend.script = script
    server, url = await serve_fake(frontend)
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

            async def ask():
                start_s = time.monotonic()
                async with http.post(url + "/v1/completions", json={**BODY, "stream": True}) as response:
                    await response.content.readuntil(b"\n\n")
                    client_ttft.append(time.monotonic() - start_s)
                    await response.read()
                    client_e2e.append(time.monotonic() - start_s)

            await asyncio.gather(*(ask() for _ in range(300)))
            samples, _ = await scrape(http, url)
    finally:
        await server.close()
    for name, engine, client in (
        ("time_to_first_token_seconds", engine_ttft, client_ttft),
        ("e2e_request_latency_seconds", engine_e2e, client_e2e),
    ):
        assert samples[f"callboard:{name}_count",] == 300
        buckets = {key[1]: value for key, value in samples.items() if key[0] == f"callboard:{name}_bucket"}
        assert len(buckets) > 10
        for bound, count in buckets.items():
            slowest, fastest = (sum(value <= float(bound) for value in values) for values in (client, engine))
            assert slowest <= count <= fastest, (name, bound)
