"""Tool calls in answers: every cut of a recorded text gives the deltas of the whole answer, and OpenAI's client reads
them."""

from __future__ import annotations

import asyncio
import json

import msgspec
import openai
import pydantic
import pytest
from fake_frontend import MODEL, FakeFrontend, FakeStream, delta, events_of, finish

from callboard.mailbox.messages.requests import TokenText
from callboard.server.answer_parser import AnswerParser, Parsing
from callboard.server.chat_format import ChatFormat
from callboard.server.chunk_sequence import ChunkSequence
from callboard.server.generation_request import AnswerOptions
from callboard.server.metrics import ServerMetrics
from callboard.server.request_timing import RequestTiming
from callboard.server.whole_choices import collect
from callboard.tests.text.tool_call_texts import PROPERTIES, TOOLS, Recorded, recorded
from callboard.text.tool_calls import FAMILIES

MESSAGES = [{"role": "user", "content": "hi"}]
CALL = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
GIVEN = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}
    for name, properties in PROPERTIES.items()
]


def joined_message(events):
    """What a client makes of the deltas of one choice, and its finish reason; checks OpenAI's form."""
    content, calls, reason = "", [], None
    for event in events:
        (choice,) = event["choices"]
        assert reason is None, "a chunk behind the last"
        reason = choice["finish_reason"]
        content += choice["delta"].get("content") or ""
        for piece in choice["delta"].get("tool_calls", ()):
            if piece["index"] == len(calls):
                assert piece["type"] == "function" and piece["id"] and piece["function"]["name"]
                calls.append({"id": piece["id"], "type": "function", "function": dict(piece["function"])})
            else:
                assert piece["index"] == len(calls) - 1 and piece.keys() == {"index", "function"}
                assert piece["function"].keys() == {"arguments"}
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return content, calls, reason


def make_format(family):
    return ChatFormat("id-1", "m", 17, AnswerOptions(parsing=Parsing(family, tuple(TOOLS))))


def streamed(family, pieces):
    chunks = ChunkSequence(make_format(family), num_choices=1, includes_usage=False)
    deltas = [delta(piece, [1]) for piece in pieces[:-1]] + [delta(pieces[-1], [1], end=finish())]
    events = events_of(b"".join(map(chunks.on_delta, deltas)))
    assert events.pop() == "[DONE]"
    return joined_message(events)


def whole(family, text):
    async def run():
        stream = FakeStream("id-1", None, None, "", False)
        stream.push(delta(text, [1], end=finish()))
        return await collect(stream, 1, RequestTiming(ServerMetrics(FakeFrontend())))

    (choice,) = make_format(family).whole(asyncio.run(run())).choices
    return msgspec.to_builtins(choice)


@pytest.mark.parametrize("case", recorded(), ids=lambda case: f"{case.family}: {case.what}")
def test_every_cut_gives_the_deltas_of_the_whole_answer(case: Recorded) -> None:
    choice = whole(case.family, case.text)
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == case.calls
    assert message["content"] == (case.content or (None if calls else ""))
    assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
    expected = (case.content, calls, choice["finish_reason"])
    for place in range(1, len(case.text)):
        assert streamed(case.family, [case.text[:place], case.text[place:]]) == expected, place
    assert streamed(case.family, list(case.text)) == expected


EITHER = [
    ("hermes", '{"a": "<tool_call>\\n{\\"name\\": 1}"}', False),
    ("qwen3_coder", '{"a": "<tool_call><function=get_time></function></tool_call>"}', False),
    ("qwen3_coder", '["<function=get_time><parameter=zone>x</parameter></function>"]', False),
    ("llama3", '{"name": "get_time", "parameters": {}}', False),
    ("hermes", "<tool_cal", False),
    ("hermes", " <tool_call>", False),
    ("hermes", "", False),
    ("mistral", '["[TOOL_CALLS][{}]"]', False),
    *((case.family, case.text, True) for case in recorded() if case.calls and not case.content),
]


@pytest.mark.parametrize(("family", "text", "are_calls"), EITHER)
def test_what_begins_with_the_mark_is_calls_and_all_else_is_content(family, text, are_calls):
    """Whatever stands in it; however it is cut."""
    written = FAMILIES[family].written
    mark = written.mark_beside_content or written.trigger
    if are_calls and not text.startswith(mark):
        pytest.skip("a form that no grammar writes")
    parsing = Parsing(family, tuple(TOOLS), are_held=True, marks=(mark,))
    key = AnswerParser(Parsing(family, tuple(TOOLS)), "closed", "k")
    calls = key.feed(text, is_last=True).calls
    for size in range(1, len(text) + 2):
        parser = AnswerParser(parsing, "closed", "k")
        content, arguments = "", {}
        for place in range(0, len(text) + 1, size):
            parsed = parser.feed(text[place : place + size], is_last=place + size > len(text))
            content += parsed.content
            for call in parsed.calls:
                arguments[call.index] = arguments.get(call.index, "") + call.arguments
        if are_calls:
            assert calls and (content, list(arguments.values())) == ("", [call.arguments for call in calls]), size
        else:
            assert (content, arguments, parser.num_calls) == (text, {}, 0), size


@pytest.fixture
async def sdk(serve, frontend):
    frontend.tool_call_parser = "hermes"
    async with openai.AsyncOpenAI(base_url=await serve() + "/v1", api_key="none", max_retries=0) as client:
        yield client


def saying(frontend, *texts, **end):
    """Each choice says the texts, a delta each."""

    def script(stream):
        for choice in range(stream.num_choices):
            for position, text in enumerate(texts):
                last = finish(**end) if position == len(texts) - 1 else None
                logprobs = None if stream.sampling.logprobs is None else [TokenText(text, text.encode(), -1.0, [])]
                stream.push(delta(text, [1], choice=choice, position=position, end=last, logprobs=logprobs))

    frontend.script = script


class GetTime(pydantic.BaseModel):
    zone: str


class Place(pydantic.BaseModel):
    name: str
    height: int


TIME_TOOL = openai.pydantic_function_tool(GetTime, name="get_time")


@pytest.mark.parametrize("n", [1, 3])
async def test_a_call_whole_and_streamed(sdk, frontend, n) -> None:
    """With n, log-probabilities of every token and usage; the ids are the same however the answer comes, but for n."""
    saying(frontend, "I look. ", *CALL)
    fields = {"model": MODEL, "messages": MESSAGES, "tools": GIVEN, "n": n, "logprobs": True}
    answer = await sdk.chat.completions.create(**fields)
    ids = set()
    for choice in answer.choices:
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("get_time", '{"zone": "UTC"}')
        assert (choice.message.content, choice.finish_reason) == ("I look.", "tool_calls")
        assert len(choice.logprobs.content) == len(CALL) + 1
        ids.add(call.id)
    assert len(ids) == n and answer.usage.total_tokens == 5 + 3 * n
    stream = await sdk.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks.pop().usage == answer.usage
    for index in range(n):
        mine = [chunk.model_dump(exclude_unset=True) for chunk in chunks if chunk.choices[0].index == index]
        content, calls, reason = joined_message(mine)
        assert (content, reason) == ("I look.", "tool_calls")
        assert [call["function"] for call in calls] == [{"name": "get_time", "arguments": '{"zone": "UTC"}'}]
        tokens = [chunk["choices"][0].get("logprobs") for chunk in mine]
        assert sum(len(each["content"]) for each in tokens if each) == len(CALL) + 1


async def test_what_the_engine_is_asked(sdk, frontend) -> None:
    saying(frontend, "no call")
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, tools=GIVEN)
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].finish_reason == "stop"
    (stream,) = frontend.streams
    assert json.loads(stream.options.tools) == GIVEN
    assert stream.output_format is None and stream.kept_markers == ("<tool_call>", "</tool_call>")
    saying(frontend, CALL)
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, tools=GIVEN, tool_choice="none")
    assert answer.choices[0].message.content == CALL and answer.choices[0].message.tool_calls is None
    assert frontend.streams[1].options.tools == b"" and frontend.streams[1].kept_markers == ()


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_time"}}])
async def test_the_stream_helper_with_a_pydantic_function_tool(sdk, frontend, choice) -> None:
    saying(frontend, *CALL)
    async with sdk.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=[TIME_TOOL], tool_choice=choice
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_completion()
    pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert "".join(piece.arguments_delta for piece in pieces) == '{"zone": "UTC"}'
    (done,) = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert done.parsed_arguments == GetTime(zone="UTC")
    (call,) = final.choices[0].message.tool_calls
    assert call.function.parsed_arguments == GetTime(zone="UTC")
    asked = frontend.streams[0].output_format
    assert (asked.triggers, asked.at_least_one) == (("<tool_call>",) if choice == "auto" else (), choice != "auto")


async def test_parse_with_tools_and_with_a_model(sdk, frontend) -> None:
    saying(frontend, CALL)
    answer = await sdk.chat.completions.parse(model=MODEL, messages=MESSAGES, tools=[TIME_TOOL])
    assert answer.choices[0].message.tool_calls[0].function.parsed_arguments == GetTime(zone="UTC")
    saying(frontend, '{"name": "K2",', '"height": 8611}')
    answer = await sdk.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Place)
    assert answer.choices[0].message.parsed == Place(name="K2", height=8611)
    async with sdk.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=Place) as stream:
        final = await stream.get_final_completion()
    assert final.choices[0].message.parsed == Place(name="K2", height=8611)
    saying(frontend, '{"name": "K2', reason="length")
    with pytest.raises(openai.LengthFinishReasonError):
        await sdk.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Place)


async def test_parse_with_tools_beside_a_model(sdk, frontend) -> None:
    """The client sends both; the answer is one of them."""
    both = {"model": MODEL, "messages": MESSAGES, "tools": [TIME_TOOL], "response_format": Place}
    saying(frontend, *CALL)
    message = (await sdk.chat.completions.parse(**both)).choices[0].message
    assert message.tool_calls[0].function.parsed_arguments == GetTime(zone="UTC")
    assert message.content is None and message.parsed is None
    async with sdk.chat.completions.stream(**both) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    assert message.tool_calls[0].function.parsed_arguments == GetTime(zone="UTC") and not message.content
    saying(frontend, *'{"name": "<tool_call>{}", "height": 8611}')
    message = (await sdk.chat.completions.parse(**both)).choices[0].message
    assert message.parsed == Place(name="<tool_call>{}", height=8611) and not message.tool_calls
    async with sdk.chat.completions.stream(**both) as stream:
        message = (await stream.get_final_completion()).choices[0].message
    assert message.parsed == Place(name="<tool_call>{}", height=8611) and not message.tool_calls


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("num_chars", [1, 11, 24, 50, 60])
async def test_a_call_that_is_cut_off(serve, http, frontend, stream, num_chars) -> None:
    """X14: the finish reason stays; there is no call, or one with a part of its arguments."""
    frontend.tool_call_parser = "hermes"
    saying(frontend, CALL[:num_chars], reason="length")
    body = {"messages": MESSAGES, "tools": GIVEN, "tool_choice": "required", "max_tokens": 3, "stream": stream}
    async with http.post(await serve() + "/v1/chat/completions", json=body) as response:
        assert response.status == 200
        answer = await response.read()
    if stream:
        _, calls, reason = joined_message(events_of(answer)[:-1])
    else:
        (choice,) = json.loads(answer)["choices"]
        calls, reason = choice["message"].get("tool_calls", []), choice["finish_reason"]
    assert reason == "length" and len(calls) <= 1
    for call in calls:
        assert call["function"]["name"] == "get_time"
        assert '{"zone": "UTC"}'.startswith(call["function"]["arguments"])


@pytest.mark.parametrize("stream", [True, False])
async def test_the_older_names_get_the_older_form(serve, http, frontend, stream) -> None:
    frontend.tool_call_parser = "hermes"
    saying(frontend, CALL[:45], CALL[45:] + CALL)
    functions = [tool["function"] for tool in GIVEN]
    body = {"messages": MESSAGES, "functions": functions, "function_call": {"name": "get_time"}, "stream": stream}
    async with http.post(await serve() + "/v1/chat/completions", json=body) as response:
        assert response.status == 200
        answer = await response.read()
    if stream:
        events = [event["choices"][0] for event in events_of(answer)[:-1]]
        pieces = [event["delta"]["function_call"] for event in events if "function_call" in event["delta"]]
        assert [piece["name"] for piece in pieces if "name" in piece] == ["get_time"]
        assert "".join(piece["arguments"] for piece in pieces) == '{"zone": "UTC"}'
        reason = events[-1]["finish_reason"]
    else:
        (choice,) = json.loads(answer)["choices"]
        assert choice["message"]["function_call"] == {"name": "get_time", "arguments": '{"zone": "UTC"}'}
        assert choice["message"]["content"] is None and "tool_calls" not in choice["message"]
        reason = choice["finish_reason"]
    assert reason == "function_call"
    told = json.loads(frontend.streams[0].options.tools)
    assert told == [{"type": "function", "function": function} for function in functions]


async def test_one_call_without_parallel_ones(sdk, frontend) -> None:
    saying(frontend, CALL, CALL)
    for parallel, number in ((True, 2), (False, 1)):
        answer = await sdk.chat.completions.create(
            model=MODEL, messages=MESSAGES, tools=GIVEN, tool_choice="required", parallel_tool_calls=parallel
        )
        assert len(answer.choices[0].message.tool_calls) == number
        assert frontend.streams[-1].output_format.at_most_one is not parallel


async def test_calls_that_are_numbered_go_on_from_those_before(serve, http, frontend) -> None:
    """Kimi's ids are positions of calls in the conversation."""
    frontend.tool_call_parser = "kimi_k2"
    saying(frontend, "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>")
    before = {"id": "1", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    history = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [before]}]
    body = {"messages": history, "tools": GIVEN}
    async with http.post(await serve() + "/v1/chat/completions", json=body) as response:
        (choice,) = (await response.json())["choices"]
    assert [call["id"] for call in choice["message"]["tool_calls"]] == ["functions.get_time:1"]


async def test_the_older_form_in_the_history(serve, http, frontend) -> None:
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "function_call": {"name": "get_time", "arguments": "{}"}},
        {"role": "function", "name": "get_time", "content": "12:00"},
    ]
    async with http.post(await serve() + "/v1/chat/completions", json={"messages": history}) as response:
        assert response.status == 200 and "x-ignored-fields" not in response.headers
    _, call, result = frontend.streams[0].prompt.messages
    assert [(made.name, made.arguments) for made in call.tool_calls] == [("get_time", "{}")]
    assert (result.role, result.name, result.content) == ("function", "get_time", "12:00")
