"""Reasoning in answers: told apart from the content, streaming or not, wherever the prompt has left it."""

from __future__ import annotations

import json

import openai
import pytest
from fake_frontend import MODEL, delta, events_of, finish, serve_fake

from callboard.mailbox.messages.requests import ReasoningMarks

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "now"}}
HARMONY = "<|channel|>analysis<|message|>let me<|end|><|start|>assistant<|channel|>final<|message|>so be it"
CASES = [
    ("think", "open", "let me\n</think>\n\nso be it", "let me", "so be it"),
    ("think", "may_open", "<think>let me</think>so be it", "let me", "so be it"),
    ("think", "may_open", "so be it", "", "so be it"),
    ("think", "closed", "so <think> be it", "", "so <think> be it"),
    ("think", "open", "let me", "let me", ""),
    ("mistral", "may_open", "[THINK]let me[/THINK]so be it", "let me", "so be it"),
    ("harmony", "may_open", HARMONY, "let me", "so be it"),
]


async def ask(frontend, text, state, *, cut=None, reasoning_parser="think", http=None, **fields):
    """The message (joined from the deltas of a stream, in pieces of `cut` characters), checked for its form."""
    frontend.reasoning_parser = reasoning_parser

    def script(stream):
        size = cut or len(text)
        pieces = [text[place : place + size] for place in range(0, len(text), size)]
        for position, piece in enumerate(pieces):
            told = state if position == 0 and stream.reasoning is not None else None
            end = finish() if position == len(pieces) - 1 else None
            stream.push(delta(piece, [1], position=position, end=end, reasoning=told))

    frontend.script = script
    server, url = await serve_fake(frontend)
    try:
        body = {"messages": MESSAGES, "stream": cut is not None, **fields}
        async with http.post(url + "/v1/chat/completions", json=body) as response:
            assert response.status == 200, await response.text()
            answer = await response.read()
    finally:
        await server.close()
    if cut is None:
        return json.loads(answer)["choices"][0]["message"]
    message = {"content": "", "reasoning": "", "reasoning_content": ""}
    for event in events_of(answer)[:-1]:
        for key in message:
            message[key] += event["choices"][0]["delta"].get(key) or ""
    return message


@pytest.mark.parametrize(("style", "state", "text", "reasoning", "content"), CASES)
@pytest.mark.parametrize("cut", [None, 1, 7])
async def test_reasoning_and_content(frontend, http, style, state, text, reasoning, content, cut):
    """Under both names; a field that is empty is not there in a whole answer."""
    message = await ask(frontend, text, state, cut=cut, reasoning_parser=style, http=http)
    assert message["content"] == content
    assert message.get("reasoning", "") == message.get("reasoning_content", "") == reasoning
    if cut is None and not reasoning:
        assert "reasoning" not in message


@pytest.mark.parametrize("cut", [None, 3])
async def test_reasoning_that_is_not_to_be_shown(frontend, http, cut):
    text = "<think>let me</think>so be it"
    message = await ask(frontend, text, "may_open", cut=cut, http=http, include_reasoning=False)
    assert (message["content"], message.get("reasoning") or "") == ("so be it", "")
    message = await ask(frontend, text, "may_open", cut=cut, http=http, separate_reasoning=False)
    assert (message["content"], message.get("reasoning") or "") == (text, "")
    assert frontend.streams[-1].reasoning is None and frontend.streams[-1].kept_markers == ()


async def test_calls_behind_reasoning(frontend, http):
    """A marker of a call ends reasoning that its own marker does not; a call that is only thought of is none."""
    frontend.tool_call_parser = "hermes"
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for text in (f"<think>let me</think>{call}", f"<think>let me{call}"):
        for cut in (None, 1):
            message = await ask(frontend, text, "may_open", cut=cut, http=http, tools=[TOOL])
            assert (message["reasoning"], message["content"] or "") == ("let me", "")
    frontend.tool_call_parser = "harmony"
    text = (
        "<|channel|>analysis<|message|>let me<|end|><|start|>assistant<|channel|>commentary to=functions.now "
        "<|constrain|>json<|message|>{}"
    )
    message = await ask(frontend, text, "may_open", reasoning_parser="harmony", http=http, tools=[TOOL])
    (made,) = message["tool_calls"]
    assert (message["reasoning"], message["content"]) == ("let me", None)
    assert made["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize("cut", [None, 1, 7])
@pytest.mark.parametrize(
    "fields",
    [{"tools": [TOOL], "tool_choice": "required"}, {"tools": [{**TOOL, "function": {"name": "now", "strict": True}}]}],
)
async def test_a_call_before_the_grammar_holds_is_none(frontend, http, cut, fields):
    """Nobody has held its arguments to their schema."""
    frontend.tool_call_parser = "hermes"
    thought, call = [
        f'<tool_call>\n{{"name": "now", "arguments": {arguments}}}\n</tool_call>' for arguments in ("5", "{}")
    ]
    text = f"{thought}</think>{call}"
    message = await ask(frontend, text, "open", cut=cut, http=http, **fields)
    assert (message["reasoning"], message["content"] or "") == (thought, "")
    if cut is None:
        (made,) = message["tool_calls"]
        assert made["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize("cut", [None, 1])
async def test_a_call_that_must_come_and_is_cut_off_is_no_content(frontend, http, cut):
    frontend.tool_call_parser = "hermes"
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    choice = {"type": "function", "function": {"name": "now"}}
    for text in ("<", '<tool_call>\n{"na', f"{call}\n<too"):
        for fields in ({"tool_choice": "required"}, {"tool_choice": choice}):
            message = await ask(frontend, text, "closed", cut=cut, http=http, tools=[TOOL], **fields)
            assert not message["content"], text
        message = await ask(frontend, text, "closed", cut=cut, http=http, tools=[TOOL])
        assert message["content"].strip() == text.removeprefix(call).strip()
    shown = await ask(
        frontend, f"let me</think>{call}", "open", http=http, cut=cut, tools=[TOOL], tool_choice="required",
        separate_reasoning=False,
    )  # fmt: skip
    assert shown["content"] == "let me</think>"


async def test_where_a_grammar_waits(frontend, http):
    """X13: behind the reasoning in chat, nowhere in completions and on a server that knows of no reasoning."""
    schema = {"response_format": {"type": "json_object"}}
    await ask(frontend, "{}", "closed", http=http, **schema)
    assert frontend.streams[-1].reasoning == ReasoningMarks("think", "<think>", "</think>")
    await ask(frontend, "{}", "closed", reasoning_parser="harmony", http=http, **schema)
    assert frontend.streams[-1].reasoning == ReasoningMarks("harmony", "", "<|channel|>final<|message|>")
    frontend.tool_call_parser = "harmony"
    await ask(frontend, "x", "closed", reasoning_parser="harmony", http=http, tools=[TOOL], tool_choice="required")
    marks = frontend.streams[-1].reasoning
    assert (marks.begin, marks.end) == ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
    await ask(frontend, "{}", "closed", http=http, separate_reasoning=False, **schema)
    assert frontend.streams[-1].reasoning == ReasoningMarks("think", "<think>", "</think>")
    await ask(frontend, "{}", "closed", reasoning_parser="none", http=http, **schema)
    assert frontend.streams[-1].reasoning is None and frontend.streams[-1].output_format is not None
    frontend.reasoning_parser = "think"
    server, url = await serve_fake(frontend)
    try:
        async with http.post(url + "/v1/completions", json={"prompt": "x", **schema}) as response:
            assert response.status == 200
    finally:
        await server.close()
    assert frontend.streams[-1].reasoning is None and frontend.streams[-1].output_format is not None


async def test_how_much_is_to_be_reasoned(frontend, http):
    """`reasoning_effort` is a variable of the template; what the client sets there goes before it."""
    for fields, expected in (
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False, "thinking": False}),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"thinking": True}},
            {"reasoning_effort": "none", "enable_thinking": False, "thinking": True},
        ),
        ({"chat_template_kwargs": {"reasoning_effort": "x"}}, {"reasoning_effort": "x"}),
    ):
        await ask(frontend, "x", "closed", http=http, **fields)
        assert json.loads(frontend.streams[-1].options.template_kwargs) == expected
    assert frontend.streams[-1].kept_markers == ("<think>", "</think>")


async def test_reasoning_comes_back_in_the_history(serve, http, frontend):
    """Under either name, to the template."""
    url = await serve()
    for name in ("reasoning", "reasoning_content"):
        messages = [*MESSAGES, {"role": "assistant", "content": "a", name: "why"}, *MESSAGES]
        async with http.post(url + "/v1/chat/completions", json={"messages": messages}) as response:
            assert response.status == 200 and "x-ignored-fields" not in response.headers
        assert frontend.streams[-1].prompt.messages[1].reasoning_content == "why"


async def test_the_client_reads_it(frontend):
    frontend.reasoning_parser = "think"
    frontend.script = lambda stream: stream.push(
        delta("let me", [1], reasoning="open"), delta("</think>so", [2], position=1, end=finish())
    )
    server, url = await serve_fake(frontend)
    try:
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
            async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
                final = await stream.get_final_completion()
    finally:
        await server.close()
    for completion in (answer, final):
        message = completion.choices[0].message
        assert (message.reasoning_content, message.content) == ("let me", "so")


IN_HARMONY = '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{"a": 1}<|call|>'
EITHER = [
    ("think", "hermes", "so</think>\n\n", '<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>', True),
    ("think", "hermes", "<tool_call></think>", '{"a": "<tool_call>"}', False),
    ("harmony", "harmony", "<|channel|>analysis<|message|>let me<|end|><|start|>assistant", IN_HARMONY, True),
    ("harmony", "harmony", "", IN_HARMONY, True),
    ("harmony", "harmony", "<|channel|>final<|message|>", '{"a": 1}', False),
    ("harmony", "harmony", HARMONY.removesuffix("so be it"), "1", False),
]  # fmt: skip


@pytest.mark.parametrize(("style", "family", "before", "text", "is_call"), EITHER)
async def test_content_or_calls_behind_reasoning(frontend, http, style, family, before, text, is_call):
    frontend.tool_call_parser = family
    fields = {"reasoning_parser": style, "http": http, "tools": [TOOL], "response_format": {"type": "json_object"}}
    state = "may_open" if style == "harmony" else "open"
    message = await ask(frontend, before + text, state, **fields)
    assert message["content"] == (None if is_call else text)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
    assert calls == ([("now", '{"a": 1}')] if is_call else [])
    marks = frontend.streams[-1].reasoning
    if style == "harmony":
        assert (marks.begin, marks.end) == ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
        assert frontend.streams[-1].output_format.content_begin == "<|channel|>final<|message|>"
    else:
        assert (marks.begin, marks.end) == ("<think>", "</think>")
    for cut in (1, 7):
        assert (await ask(frontend, before + text, state, cut=cut, **fields))["content"] == ("" if is_call else text)
    fields["separate_reasoning"] = False
    kept = await ask(frontend, before + text, state, **fields)
    assert len(kept.get("tool_calls", [])) == is_call and "reasoning" not in kept
