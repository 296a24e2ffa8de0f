"""The official client's calls with the fields of both endpoints, over a real connection."""

from __future__ import annotations

import openai
import pydantic
import pytest
from fake_frontend import MAX_MODEL_LEN, MODEL, VOCAB_SIZE, delta, finish
from prompt_details import PROMPT, jumps

from callboard.mailbox.messages.requests import TextPrompt, TokenPrompt

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
async def sdk(serve):
    async with openai.AsyncOpenAI(base_url=await serve() + "/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_every_form_of_a_prompt(sdk, frontend):
    text, ids = TextPrompt("a"), TokenPrompt([1, 2])
    for prompt, expected in [("a", [text]), (["a", "a"], [text] * 2), ([1, 2], [ids]), ([[1, 2], [1, 2]], [ids] * 2)]:
        frontend.streams.clear()
        answer = await sdk.completions.create(model=MODEL, prompt=prompt, n=2)
        assert [stream.prompt for stream in frontend.streams] == expected
        assert [choice.index for choice in answer.choices] == list(range(2 * len(expected)))
    texts = [""] * 4
    async for chunk in await sdk.completions.create(model=MODEL, prompt=["a", "b"], n=2, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["Hello wörld"] * 4


async def test_completions_with_everything(sdk, frontend):
    frontend.script = jumps
    answer = await sdk.completions.create(
        model=MODEL, prompt=PROMPT, echo=True, logprobs=1, max_tokens=2, n=1, best_of=1, stop=["\n"], seed=-1,
        logit_bias={"5": -100}, presence_penalty=0.5, frequency_penalty=-0.5, temperature=0, top_p=0.5, user="u",
        extra_body={
            "min_tokens": 1, "stop_token_ids": [3], "repetition_penalty": 1.5, "bad_words": ["no"],
            "prompt_logprobs": 0, "allowed_token_ids": [5, 6],
            "skip_special_tokens": False, "include_stop_str_in_output": True,
            "repetition_detection": {"max_pattern_size": 4}, "truncate_prompt_tokens": 9, "add_special_tokens": False,
            "return_token_ids": True, "cache_salt": "s", "logprobs_mode": "processed_logprobs",
        },
    )  # fmt: skip
    (choice,) = answer.choices
    assert choice.text == "The quick fox jumps"
    assert choice.logprobs.tokens == ["The", " qu", "ick", " fox", " ju", "mps"]
    assert choice.logprobs.token_logprobs[0] is choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.text_offset == [0, 3, 6, 9, 13, 16]
    assert choice.prompt_logprobs[1]["21"]["rank"] == 4
    sampling = frontend.streams[0].sampling
    assert (sampling.logit_bias, sampling.presence_penalty, sampling.frequency_penalty) == (((5, -100.0),), 0.5, -0.5)
    assert (sampling.bad_words, sampling.min_tokens, sampling.stop_token_ids) == (("no",), 1, (3,))
    assert (sampling.logprobs, sampling.prompt_logprobs, sampling.processed_logprobs) == (1, 1, True)


async def test_chat_with_everything(sdk, frontend):
    frontend.script = jumps
    stream = await sdk.chat.completions.create(
        model=MODEL, messages=[*MESSAGES, {"role": "assistant", "content": "It"}], stream=True, n=2, logprobs=True,
        top_logprobs=1, max_completion_tokens=2, logit_bias={str(VOCAB_SIZE - 1): 3}, metadata={"a": "b"}, store=False,
        service_tier="auto", parallel_tool_calls=True, tool_choice="none", response_format={"type": "text"},
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        extra_body={"echo": True, "continue_final_message": True, "chat_template_kwargs": {"a": 1}, "documents": []},
    )  # fmt: skip
    texts, roles, usage = ["", ""], [0, 0], None
    async for chunk in stream:
        usage = chunk.usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role is not None
    assert (texts, roles) == (["It jumps"] * 2, [1, 1])
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 4)
    assert frontend.streams[0].sampling.logit_bias == ((VOCAB_SIZE - 1, 3.0),)
    assert frontend.streams[0].options.continue_final_message


async def test_log_probabilities_of_chat(sdk, frontend):
    frontend.script = jumps
    for fields, num_top in [({}, 0), ({"top_logprobs": 0}, 0), ({"top_logprobs": 2}, 2)]:
        answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, **fields)
        content = answer.choices[0].logprobs.content
        assert [entry.token for entry in content] == [" ju", "mps"]
        assert [len(entry.top_logprobs) for entry in content] == [num_top] * 2
    answer = await sdk.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].logprobs is None


class Place(pydantic.BaseModel):
    name: str


async def test_what_waits_for_another_version_is_a_clean_400(sdk, frontend):
    for param, fields in [
        ("modalities", {"modalities": ["text", "audio"]}),
        ("web_search_options", {"web_search_options": {}}),
        ("chat_template", {"extra_body": {"chat_template": "{{ x }}"}}),
        ("priority", {"extra_body": {"priority": 1}}),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
        assert refused.value.param == param
        assert param in refused.value.message
    for param, fields in [
        ("suffix", {"suffix": "x"}),
        ("best_of", {"best_of": 2}),
        ("logprobs", {"logprobs": 21}),
        ("logprobs", {"logprobs": 21, "stream": True}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": MAX_MODEL_LEN}),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.completions.create(model=MODEL, prompt="a", **fields)
        assert refused.value.param == param
    assert frontend.streams == []
    assert (await sdk.completions.create(model=MODEL, prompt="a")).choices[0].text == "Hello wörld"


async def test_a_history_with_tool_calls(sdk, frontend):
    """K07: whatever an earlier turn's arguments are; the tool's answer as text or in parts."""
    for arguments in ("", "{}", "{bad"):
        for content in ("12:00", [{"type": "text", "text": "12:00"}]):
            call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": arguments}}
            answer = await sdk.chat.completions.create(
                model=MODEL,
                messages=[
                    *MESSAGES,
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "1", "content": content},
                ],
                tool_choice="none",
            )
            assert answer.choices[0].message.tool_calls is None
            assert frontend.streams[-1].prompt.messages[2].content == "12:00"


async def test_a_message_in_parts_is_the_message(sdk, frontend):
    """K05: one part is the same prompt as its text; two are joined by a line feed."""
    for content in ("abc", [{"type": "text", "text": "abc"}]):
        await sdk.chat.completions.create(model=MODEL, messages=[{"role": "critic", "content": content}])
    assert frontend.streams[0].prompt == frontend.streams[1].prompt
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await sdk.chat.completions.create(model=MODEL, messages=[{"role": "system", "content": parts}])
    assert frontend.streams[2].prompt.messages[0].content == "a\nb"
    for part in ({"type": "image_url", "image_url": {"url": "data:"}}, {"type": "nonsense"}):
        with pytest.raises(openai.BadRequestError):
            await sdk.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [part]}])


@pytest.mark.parametrize("stream", [True, False])
async def test_tokens_of_the_cache(sdk, frontend, stream):
    """T04: with n the prompt counts once, and what the first choice found; a stream says the same."""

    def script(stream):
        for choice in range(stream.num_choices):
            stream.push(delta("a", [1], choice=choice, end=finish(cached_tokens=3 if choice == 0 else 4)))

    frontend.script = script
    if stream:
        chunks = await sdk.completions.create(
            model=MODEL, prompt="a", n=2, stream=True, stream_options={"include_usage": True}
        )
        usage = [chunk async for chunk in chunks][-1].usage
    else:
        usage = (await sdk.completions.create(model=MODEL, prompt="a", n=2)).usage
    assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (5, 3)


async def test_top_p_zero_is_greedy_at_both(sdk, frontend):
    """M03."""
    await sdk.completions.create(model=MODEL, prompt="a", top_p=0, temperature=1)
    await sdk.chat.completions.create(model=MODEL, messages=MESSAGES, top_p=0, temperature=1)
    assert [stream.sampling.temperature for stream in frontend.streams] == [0.0, 0.0]
