"""Formats, tools and reasoning through the Python client: sent as they are given, read alike from streams and whole."""

from __future__ import annotations

import json

import pytest
from fake_frontend import delta, finish, serve_fake

from callboard.client import AsyncClient, CallMade
from callboard.mailbox.messages.grammar import JsonFormat, RegexFormat

MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
CALL = '<tool_call>{"name": "now", "arguments": {"a": "é"}}</tool_call>'
TEXT = f"let me</think>so {CALL}{CALL}"


@pytest.fixture
async def client(frontend):
    frontend.tool_call_parser, frontend.reasoning_parser = "hermes", "think"
    server, url = await serve_fake(frontend)
    async with AsyncClient(url) as client:
        yield client
    await server.close()


def script(stream):
    for choice in range(stream.num_choices):
        for position, text in enumerate(TEXT):
            end = finish() if position == len(TEXT) - 1 else None
            state = None if position else "open"
            stream.push(delta(text, [1], choice=choice, position=position, end=end, reasoning=state))


@pytest.mark.parametrize("n", [1, 2])
async def test_calls_and_reasoning(client, frontend, n):
    frontend.script = script
    fields = {"tools": TOOLS, "tool_choice": "auto", "n": n, "reasoning_effort": "low"}
    whole = await client.chat_whole(MESSAGES, **fields)
    streamed = await client.chat(MESSAGES, **fields).answer()
    for answer in (whole, streamed):
        for choice in answer.choices:
            assert (choice.text, choice.reasoning, choice.finish_reason) == ("so", "let me", "tool_calls")
            assert [(call.name, call.arguments) for call in choice.tool_calls] == [("now", '{"a": "é"}')] * 2
            assert all(isinstance(call, CallMade) and call.id for call in choice.tool_calls)
        assert answer.tool_calls == answer.choices[0].tool_calls
    assert json.loads(frontend.streams[0].options.template_kwargs) == {"reasoning_effort": "low"}
    async for each in client.chat(MESSAGES, **fields):
        assert each.text or each.reasoning or each.tool_calls or each.token_ids or each.finish_reason
    silent = await client.chat_whole(MESSAGES, tools=TOOLS, include_reasoning=False)
    assert silent.choices[0].reasoning == ""


async def test_formats(client, frontend):
    await client.chat_whole(MESSAGES, response_format={"type": "json_object"})
    assert isinstance(frontend.streams[-1].output_format, JsonFormat)
    await client.complete_whole("x", structured_outputs={"regex": "[ab]"})
    assert frontend.streams[-1].output_format == RegexFormat("[ab]")
    await client.tokenize(MESSAGES, tools=TOOLS, tool_choice="auto", reasoning_effort="high")
    assert json.loads(frontend.tokenized[-1][1].tools) == TOOLS
