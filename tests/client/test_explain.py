"""What the client tells of requests: which live, and where the time of one went."""

from __future__ import annotations

import msgspec
import pytest
from raw_server import answer

from callboard.client import AsyncClient, ChoiceExplanation, LiveRequest, Preemption, RequestExplanation, WaitingSeconds
from callboard.errors import InvalidRequest, UnknownModel
from callboard.mailbox.messages.requests import PreemptionRecord, RequestLedger, WaitTime
from callboard.server import request_explanations

CHOICE = {
    "index": 1, "state": "running", "waits_for": None, "finish_reason": None, "prompt_tokens": 12,
    "completion_tokens": 3, "cached_tokens": 8, "receive_s": 0.5, "tokenize_s": 0.25,
    "waiting_s": {"budget": 0.5, "blocks": 1.0, "of a later version": 4.0}, "prefill_s": 2.0, "decode_s": 3.0,
    "deliver_s": 0.0, "unknown_s": 0.0, "total_s": 7.25, "chunks": [4, 8],
    "preemptions": [{"step": 7, "cause": "blocks", "lost_tokens": 16}], "recomputed_tokens": 16, "new": 1,
}  # fmt: skip
TOLD = {"id": "cmpl-1", "object": "request", "x_request_id": "mine", "state": "answering", "total_s": 7.25,
        "write_s": 0.125, "choices": [CHOICE]}  # fmt: skip


async def test_explain(raw, raw_client):
    raw.answers = [answer(TOLD)]
    told = await raw_client.explain("cmpl-1")
    assert (raw.requests[0].method, raw.requests[0].path) == ("GET", "/v1/requests/cmpl-1")
    assert isinstance(told, RequestExplanation)
    assert (told.id, told.x_request_id, told.state, told.write_s) == ("cmpl-1", "mine", "answering", 0.125)
    (choice,) = told.choices
    assert isinstance(choice, ChoiceExplanation)
    assert choice.waiting_s == WaitingSeconds(budget=0.5, blocks=1.0) and choice.waiting_s.total == 1.5
    assert choice.preemptions == (Preemption(7, "blocks", 16),) and choice.chunks == (4, 8)


async def test_an_id_of_any_characters_is_one_part_of_the_path(raw, raw_client):
    raw.answers = [answer(TOLD)]
    await raw_client.explain("a/b?c#d%2F é")
    assert raw.requests[0].path == "/v1/requests/a%2Fb%3Fc%23d%252F%20%C3%A9"


async def test_requests(raw, raw_client):
    live = {"id": "cmpl-1", "x_request_id": "mine", "state": "waiting", "age_s": 1.5, "num_choices": 2,
            "completion_tokens": 0}  # fmt: skip
    raw.answers = [answer({"object": "list", "data": [live]})]
    assert await raw_client.requests() == [LiveRequest("cmpl-1", "mine", "waiting", 1.5, 2, 0)]
    assert raw.requests[0].path == "/v1/requests"


@pytest.mark.parametrize("name", ["WaitingSeconds", "ChoiceExplanation", "LiveRequest"])
def test_the_client_has_every_field_that_the_server_writes(name):
    server, client = getattr(request_explanations, name), globals()[name]
    assert client.__struct_fields__ == server.__struct_fields__


def test_what_is_left_out_is_read() -> None:
    choice = {**CHOICE, "num_chunks": 300, "num_preemptions": 2}
    written = msgspec.json.encode({**TOLD, "choices": [choice], "choices_left_out": 7})
    told = msgspec.json.decode(written, type=RequestExplanation)
    assert (told.choices_left_out, told.choices[0].num_chunks, told.choices[0].num_preemptions) == (7, 300, 2)


async def test_a_real_server(serve, frontend):
    async with AsyncClient(await serve()) as client:
        whole = await client.complete_whole("x", request_id="what/ever")
        waiting = WaitTime(blocks_ns=2_000_000_000)
        frontend.ledgers[whole.request_id] = (
            RequestLedger(
                0, "stopped", 0, 10, 20, waiting, 1, 2, 3, 4, 5, (6, 7), (PreemptionRecord(8, "worker", 9),), 10
            ),
        )
        for name in (whole.request_id, "what/ever"):
            told = await client.explain(name)
            assert (told.id, told.x_request_id, told.state) == (whole.request_id, "what/ever", "ended")
            (choice,) = told.choices
            assert (choice.waiting_s.blocks, choice.chunks) == (2.0, (6, 7))
            assert choice.preemptions == (Preemption(8, "worker", 9),)
        with pytest.raises(InvalidRequest) as caught:
            await client.explain("another")
        assert (caught.value.status, caught.value.code) == (404, "request_not_found")
        assert not isinstance(caught.value, UnknownModel)
        assert await client.requests() == []


async def test_deadline_and_tenant_and_their_end(serve, frontend):
    from fake_frontend import delta, finish

    frontend.script = lambda stream: stream.push(delta("a", [1]), delta("", [], position=1, end=finish("timeout", 1)))
    async with AsyncClient(await serve()) as client:
        whole = await client.complete_whole("x", deadline_ms=1500.5, tenant="red")
        streamed = await client.complete("x", deadline_ms=1, tenant="red").answer()
    assert [(one.finish_reason, one.text) for one in (whole, streamed)] == [("timeout", "a")] * 2
    assert [(stream.deadline_ms, stream.tenant) for stream in frontend.streams] == [(1500.5, "red"), (1, "red")]


def test_what_the_server_says_is_what_the_client_reads():
    """The other direction: nothing that the server writes is of a type that the client would refuse."""
    choice = request_explanations.ChoiceExplanation(index=0, state="s", receive_s=0.5, total_s=1.0)
    written = msgspec.json.encode(request_explanations.RequestObject(id="i", state="s", total_s=1.0, choices=[choice]))
    told = msgspec.json.decode(written, type=RequestExplanation)
    assert (told.x_request_id, told.choices[0].prompt_tokens, told.choices[0].receive_s) == (None, None, 0.5)
