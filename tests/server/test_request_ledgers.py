"""GET /v1/requests and /v1/requests/ID: the scheduler's ledger between the server's own times, without a gap."""

from __future__ import annotations

import asyncio
import time

import jsonschema
import msgspec
import pytest
from fake_frontend import delta, finish

from callboard.errors import Overloaded, RequestError
from callboard.mailbox.messages.requests import Explanation, PreemptionRecord, RequestLedger, WaitTime
from callboard.server.request_explanations import explained
from callboard.server.request_records import RequestRecord, RequestRecords

BODY = {"prompt": "a"}
PARTS = ("receive_s", "tokenize_s", "prefill_s", "decode_s", "deliver_s", "unknown_s")
MS = 1_000_000


def ledger(choice=0, begin_ns=0, ended=True, **more):
    """Lives 100 ms: 10 before the scheduler, 1 to 9 in the nine kinds of waiting, 20 of prefill, 25 of decode."""
    waiting = WaitTime(*(number * MS for number in range(1, 10)))
    fields = {
        "choice": choice, "state": "stopped" if ended else "running", "arrival_ns": begin_ns,
        "queued_ns": begin_ns + 10 * MS, "ended_ns": begin_ns + 100 * MS if ended else None, "waiting": waiting,
        "prefill_ns": 20 * MS, "decode_ns": 25 * MS, "num_prompt_tokens": 12, "num_output_tokens": 3,
        "num_cached_tokens": 8, "chunks": (4, 8), "preemptions": (PreemptionRecord(7, "blocks", 16),),
        "num_recomputed_tokens": 16, "num_draft_tokens": 6, "num_accepted_tokens": 2,
    }  # fmt: skip
    return RequestLedger(**{**fields, **more})


def record(num_prompts=1, n=1, streams=False):
    made = RequestRecord(
        "cmpl-1", "mine", [f"cmpl-1-{p}" for p in range(num_prompts)], tenant="", num_choices=n, streams=streams,
        arrival_ns=1_000 * MS,
    )  # fmt: skip
    made.submitted_ns = 1_005 * MS
    return made


def parts(choice):
    return sum(choice[name] for name in PARTS) + sum(choice["waiting_s"].values())


def told(made, *explanations):
    return msgspec.json.decode(msgspec.json.encode(explained(made, explanations)))


def said(made, now_ms, *ledgers):
    return Explanation("q", 1, "r", now_ms * MS, ledgers)


# The sums, by times that are given


def test_the_parts_of_one_that_has_ended_follow_one_another():
    made = record()
    made.ended_ns = 1_130 * MS
    answer = told(made, said(made, 5_000, ledger(begin_ns=1_005 * MS)))
    (choice,) = answer["choices"]
    assert choice["waiting_s"] == {
        "budget": 0.001, "sequences": 0.002, "blocks": 0.003, "grammar": 0.004, "adapter": 0.005, "remote_kv": 0.006,
        "input": 0.007, "priority": 0.008, "worker": 0.009,
    }  # fmt: skip
    times = [choice[name] for name in PARTS]
    assert times == [0.005, 0.010, 0.020, 0.025, 0.025, 0.0]
    assert parts(choice) == pytest.approx(choice["total_s"]) == pytest.approx(0.130) == answer["total_s"]
    assert choice["preemptions"] == [{"step": 7, "cause": "blocks", "lost_tokens": 16}]
    assert (choice["prompt_tokens"], choice["completion_tokens"], choice["cached_tokens"]) == (12, 3, 8)
    assert (choice["chunks"], choice["recomputed_tokens"]) == ([4, 8], 16)
    assert (choice["draft_tokens"], choice["accepted_tokens"], choice["waits_for"]) == (6, 2, None)


def test_of_one_that_lives_they_reach_to_now():
    made = record()
    answer = told(made, said(made, 1_105, ledger(begin_ns=1_005 * MS, ended=False, waits_for="blocks")))
    (choice,) = answer["choices"]
    assert (choice["deliver_s"], choice["waits_for"]) == (0.0, "blocks")
    assert parts(choice) == pytest.approx(choice["total_s"]) == pytest.approx(0.105) == answer["total_s"]


def test_one_that_has_ended_in_the_engine_alone_is_on_its_way_to_the_client():
    made = record()
    (choice,) = told(made, said(made, 1_200, ledger(begin_ns=1_005 * MS)))["choices"]
    assert choice["deliver_s"] == pytest.approx(0.095)
    assert parts(choice) == pytest.approx(choice["total_s"]) == pytest.approx(0.200)


def test_one_that_is_not_with_the_scheduler_is_being_tokenized_and_later_forgotten():
    made = record()
    (choice,) = told(made, said(made, 1_050))["choices"]
    assert (choice["state"], choice["tokenize_s"], choice["prompt_tokens"]) == ("tokenizing", 0.045, None)
    assert parts(choice) == pytest.approx(choice["total_s"]) == pytest.approx(0.050)
    made.ended_ns = 1_060 * MS
    made.choices[0].finish_reason = "timeout"
    (choice,) = told(made, said(made, 9_000))["choices"]
    assert (choice["state"], choice["unknown_s"], choice["finish_reason"]) == ("forgotten", 0.055, "timeout")
    assert parts(choice) == pytest.approx(choice["total_s"]) == pytest.approx(0.060)


def test_a_client_that_left_did_so_before_the_engine_ended_it():
    made = record()
    made.ended_ns = 1_050 * MS
    (choice,) = told(made, said(made, 9_000, ledger(begin_ns=1_005 * MS, state="aborted")))["choices"]
    assert choice["deliver_s"] == 0.0 and parts(choice) == pytest.approx(choice["total_s"]) == pytest.approx(0.105)


def test_choices_of_several_prompts_have_the_indexes_of_the_answer():
    made = record(num_prompts=2, n=2)
    explanations = [
        said(made, 1_200, ledger(1, 1_005 * MS), ledger(0, 1_005 * MS)),
        said(made, 1_200, ledger(1, 1_005 * MS)),
    ]
    choices = told(made, *explanations)["choices"]
    assert [(choice["index"], choice["state"]) for choice in choices] == [
        (0, "stopped"), (1, "stopped"), (2, "tokenizing"), (3, "stopped"),
    ]  # fmt: skip


def test_choices_that_the_scheduler_leaves_out_are_counted_and_not_taken_for_forgotten():
    """Two prompts of 5 choices: of the first 2 are told, of the second none is known yet."""
    made = record(num_prompts=2, n=5)
    first = said(
        made, 1_200, *(ledger(choice, 1_005 * MS, num_choices_left_out=3, num_chunks=9) for choice in range(2))
    )
    answer = told(made, first, said(made, 1_200))
    assert [(choice["index"], choice["state"], choice["num_chunks"]) for choice in answer["choices"]] == [
        (0, "stopped", 9), (1, "stopped", 9), *((index, "tokenizing", 0) for index in range(5, 10)),
    ]  # fmt: skip
    assert answer["choices_left_out"] == 3
    assert [choice["index"] for choice in told(made, first)["choices"]] == [0, 1], "one prompt was asked about"
    assert told(made, first)["choices_left_out"] == 8


def test_a_choice_of_a_stream_ends_when_the_client_has_its_end():
    made = record(n=2, streams=True)
    made.read(delta("x", [1], choice=1))
    made.written()
    made.read(delta(choice=1, end=finish()))
    made.written()
    made.choices[1].sent_ns = 1_150 * MS
    made.ended_ns = 1_300 * MS
    first, second = told(made, said(made, 9_000, ledger(0, 1_005 * MS), ledger(1, 1_005 * MS)))["choices"]
    assert (first["total_s"], second["total_s"]) == (pytest.approx(0.300), pytest.approx(0.150))
    assert second["finish_reason"] == "stop" and first["finish_reason"] is None


def test_what_is_kept_is_bounded_by_choices_and_the_last_one_is_kept():
    records = RequestRecords(max_ended_choices=4)
    made = []
    for number, n in enumerate((1, 2, 2, 9, 1)):
        made.append(RequestRecord(f"r{number}", "h", ["r"], tenant="", num_choices=n, streams=False, arrival_ns=0))
        records.begin(made[-1])
    assert list(records.live()) == made
    kept = []
    for each in made:
        records.end(each)
        kept.append([other.request_id for other in made if records.find(other.request_id) == [other]])
    assert kept[-1] == ["r4"] and kept[-2] == ["r3", "r4"] and kept[2] == ["r1", "r2", "r3", "r4"]
    assert list(records.live()) == [] and records.find("none") == []


# Over HTTP


async def get(http, url):
    async with http.get(url) as response:
        return response.status, await response.json()


async def begin(http, url, frontend, headers=None, **more):
    """(task, its stream): sent, and taken by the engine."""
    frontend.script = lambda stream: None
    task = asyncio.create_task(http.post(url + "/v1/completions", json={**BODY, **more}, headers=headers))
    return task, await frontend.arrivals.get()


async def test_the_ids_that_a_client_sees_find_a_request_live_and_later(serve, http, frontend):
    url = await serve()
    task, stream = await begin(http, url, frontend, {"X-Request-Id": "mine/1"})
    frontend.ledgers[stream.request_id] = (ledger(begin_ns=time.monotonic_ns(), ended=False),)
    for name in (stream.request_id, "mine%2F1"):
        status, answer = await get(http, f"{url}/v1/requests/{name}")
        assert (status, answer["id"], answer["x_request_id"]) == (200, stream.request_id, "mine/1")
        assert (answer["state"], answer["object"], answer["choices"][0]["state"]) == ("waiting", "request", "running")
    stream.push(delta("a", [1], end=finish(completion_tokens=1)))
    async with await task as response:
        assert (await response.json())["id"] == stream.request_id
    frontend.ledgers[stream.request_id] = (ledger(begin_ns=time.monotonic_ns() - 200 * MS),)
    status, answer = await get(http, f"{url}/v1/requests/{stream.request_id}")
    assert (status, answer["state"], answer["choices"][0]["finish_reason"]) == (200, "ended", "stop")
    status, again = await get(http, f"{url}/v1/requests/mine%2F1")
    assert again == answer, "it has ended: nothing changes any more"
    assert set(frontend.explained) == {stream.request_id}


async def test_a_made_up_id_of_the_header_works_too(serve, http, frontend):
    url = await serve()
    async with http.post(
        url + "/v1/chat/completions", json={"messages": [{"role": "user", "content": "a"}]}
    ) as response:
        name, header = (await response.json())["id"], response.headers["X-Request-Id"]
    assert name.startswith("chatcmpl-")
    for wanted in (name, header):
        status, answer = await get(http, f"{url}/v1/requests/{wanted}")
        assert (status, answer["id"], answer["x_request_id"]) == (200, name, header)


async def test_of_several_with_one_header_the_last_is_meant(serve, http, frontend):
    url = await serve()
    names = []
    for _ in range(3):
        async with http.post(url + "/v1/completions", json=BODY, headers={"X-Request-Id": "again"}) as response:
            names.append((await response.json())["id"])
    assert (await get(http, f"{url}/v1/requests/again"))[1]["id"] == names[-1]


async def test_several_prompts_are_one_request(serve, http, frontend):
    url = await serve()
    async with http.post(url + "/v1/completions", json={"prompt": ["a", "b"], "n": 2}) as response:
        name = (await response.json())["id"]
    for prompt in range(2):
        frontend.ledgers[f"{name}-{prompt}"] = tuple(ledger(choice, num_prompt_tokens=prompt) for choice in range(2))
    status, answer = await get(http, f"{url}/v1/requests/{name}")
    assert status == 200
    assert [(choice["index"], choice["prompt_tokens"]) for choice in answer["choices"]] == [
        (0, 0),
        (1, 0),
        (2, 1),
        (3, 1),
    ]
    assert frontend.explained == [f"{name}-0", f"{name}-1"]


async def test_of_very_many_prompts_the_first_16_are_asked_about(serve, http, frontend):
    url = await serve()
    async with http.post(url + "/v1/completions", json={"prompt": ["a"] * 100}) as response:
        name = (await response.json())["id"]
    status, answer = await get(http, f"{url}/v1/requests/{name}")
    assert frontend.explained == [f"{name}-{prompt}" for prompt in range(16)]
    assert (status, len(answer["choices"]), answer["choices_left_out"]) == (200, 16, 84)


async def test_one_of_another_frontend_is_told_as_the_scheduler_knows_it(serve, http, frontend):
    url = await serve()
    frontend.ledgers["cmpl-elsewhere"] = (ledger(), ledger(1))
    status, answer = await get(http, url + "/v1/requests/cmpl-elsewhere")
    assert (status, answer["state"], answer["x_request_id"]) == (200, "ended", None)
    assert [parts(choice) for choice in answer["choices"]] == [pytest.approx(0.1)] * 2
    assert (answer["total_s"], answer["choices_left_out"]) == (pytest.approx(0.1), 0)
    frontend.ledgers["cmpl-elsewhere"] = (ledger(num_choices_left_out=38), ledger(1, num_choices_left_out=38))
    assert (await get(http, url + "/v1/requests/cmpl-elsewhere"))[1]["choices_left_out"] == 38
    frontend.ledgers["cmpl-elsewhere"] = (ledger(begin_ns=time.monotonic_ns() - 100 * MS, ended=False),)
    assert (await get(http, url + "/v1/requests/cmpl-elsewhere"))[1]["state"] == "live"


@pytest.mark.parametrize("name", ["cmpl-none", "x" * 2000, "a%2Fb", "%00"])
async def test_an_unknown_one_is_a_404_that_says_what_to_give(serve, http, name):
    url = await serve()
    status, answer = await get(http, f"{url}/v1/requests/{name}")
    error = answer["error"]
    assert (status, error["code"], error["param"]) == (404, "request_not_found", "request_id")
    assert "X-Request-Id" in error["message"] and len(error["message"]) < 600


async def test_what_the_engine_refuses_is_the_answer(serve, http, frontend):
    url = await serve()
    frontend.refusal = Overloaded("too many questions", retry_after_s=7)
    async with http.get(url + "/v1/requests/cmpl-1") as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")


async def test_one_that_is_refused_is_not_known(serve, http, frontend):
    url = await serve()
    frontend.refusal = Overloaded("full", retry_after_s=7)
    async with http.post(url + "/v1/completions", json=BODY, headers={"X-Request-Id": "mine"}) as response:
        assert response.status == 429
    frontend.refusal = None
    assert (await get(http, url + "/v1/requests/mine"))[0] == 404
    assert (await get(http, url + "/v1/requests"))[1]["data"] == []


async def test_the_list_has_those_that_live_and_how_far_they_are(serve, http, frontend):
    url = await serve()
    assert await get(http, url + "/v1/requests") == (200, {"object": "list", "data": []})
    first, waiting = await begin(http, url, frontend, {"X-Request-Id": "one"}, n=2)
    second, streaming = await begin(http, url, frontend, stream=True)
    streaming.push(delta("ab", [1, 2]))
    response = await second
    await response.content.readuntil(b"\n\n")
    _, listed = await get(http, url + "/v1/requests")
    ages = [entry.pop("age_s") for entry in listed["data"]]
    assert ages[0] >= ages[1] > 0
    assert listed["data"] == [
        {"id": waiting.request_id, "x_request_id": "one", "state": "waiting", "num_choices": 2, "completion_tokens": 0},
        {"id": streaming.request_id, "x_request_id": response.headers["X-Request-Id"], "state": "answering",
         "num_choices": 1, "completion_tokens": 2},
    ]  # fmt: skip
    response.close()
    await streaming.closed.wait()
    waiting.push(RequestError("no"))
    (await first).release()
    await waiting.closed.wait()
    assert (await get(http, url + "/v1/requests"))[1]["data"] == []


async def test_answers_are_as_the_document_describes_them(serve, http, frontend):
    url = await serve()
    document = (await get(http, url + "/openapi.json"))[1]
    task, stream = await begin(http, url, frontend)
    frontend.ledgers[stream.request_id] = (ledger(begin_ns=time.monotonic_ns() - 100 * MS),)
    for path in ("/v1/requests", "/v1/requests/{request_id}"):
        answers = document["paths"][path]["get"]["responses"]
        schema = answers["200"]["content"]["application/json"]["schema"]
        validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
        validator.validate((await get(http, url + path.replace("{request_id}", stream.request_id)))[1])
    assert set(answers) == {"200", "404", "429", "500", "503"}
    stream.push(RequestError("no"))
    (await task).release()
