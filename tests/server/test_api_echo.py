"""Completions with `echo`: the prompt comes before the answer, with its log-probabilities if they were asked for."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from fake_frontend import delta, events_of, finish
from prompt_details import OUTPUT_IDS, PROMPT, PROMPT_IDS, jumps

from callboard.mailbox.messages.requests import PromptDetails, TokenText

BODY = {"prompt": PROMPT, "echo": True, "temperature": 0}
KEYS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")


async def post(http, url, **fields):
    async with http.post(url + "/v1/completions", json={**BODY, **fields}) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def stream(http, url, **fields):
    """The choice's chunks."""
    async with http.post(url + "/v1/completions", json={**BODY, **fields, "stream": True}) as response:
        events = events_of(await response.read())
    assert events.pop() == "[DONE]"
    return [event["choices"][0] for event in events]


def joined(chunks, key):
    return [item for chunk in chunks if chunk["logprobs"] is not None for item in chunk["logprobs"][key]]


async def test_the_text_begins_with_the_prompt(serve, http, frontend):
    frontend.script = jumps
    url = await serve()
    (choice,) = (await post(http, url, return_token_ids=True))["choices"]
    assert choice["text"] == "The quick fox jumps"
    assert (choice["prompt_token_ids"], choice["token_ids"]) == (PROMPT_IDS, OUTPUT_IDS)
    assert choice["logprobs"] is None
    assert frontend.streams[0].returns_prompt
    assert frontend.streams[0].sampling.prompt_logprobs is None
    answer = await post(http, url, n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["The quick fox jumps"] * 2
    assert "prompt_token_ids" not in answer["choices"][0]
    chunks = await stream(http, url)
    assert [chunk["text"] for chunk in chunks] == ["The quick fox j", "umps"]
    (choice,) = (await post(http, url, echo=False))["choices"]
    assert choice["text"] == " jumps"
    assert not frontend.streams[-1].returns_prompt


async def test_log_probabilities_of_prompt_and_answer(serve, http, frontend):
    frontend.script = jumps
    url = await serve()
    answer = await post(http, url, logprobs=1)
    sampling = frontend.streams[0].sampling
    assert (sampling.logprobs, sampling.prompt_logprobs) == (1, 1)
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["The", " qu", "ick", " fox", " ju", "mps"],
        "token_logprobs": [None, -2.5, -0.25, -9999.0, -0.5, -0.75],
        "top_logprobs": [
            None,
            {" br": -0.5, " qu": -2.5},
            {"ick": -0.25},
            {" dog": -1.0, " fox": -9999.0},
            {" ju": -0.5},
            {"mps": -0.75},
        ],
        "text_offset": [0, 3, 6, 9, 13, 16],
    }
    assert "prompt_logprobs" not in answer["choices"][0]


@pytest.mark.parametrize("logprobs", [0, 1, 2])
@pytest.mark.parametrize("echo", [True, False])
async def test_a_stream_has_the_lists_of_the_whole_answer(serve, http, frontend, logprobs, echo):
    """S08: the text of the first delta is cut in the middle of its token, as a stop string makes it."""
    frontend.script = jumps
    url = await serve()
    whole = (await post(http, url, logprobs=logprobs, echo=echo))["choices"][0]
    chunks = await stream(http, url, logprobs=logprobs, echo=echo)
    assert {key: joined(chunks, key) for key in KEYS} == whole["logprobs"]
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    tokens, offsets = whole["logprobs"]["tokens"], whole["logprobs"]["text_offset"]
    assert len(tokens) == (6 if echo else 2)
    assert [after - before for before, after in pairwise(offsets)] == list(map(len, tokens[:-1]))
    for top in whole["logprobs"]["top_logprobs"][echo:]:
        assert len(top) in (max(logprobs, 1), logprobs + 1)


@pytest.mark.parametrize("n", [1, 2])
async def test_the_prompt_alone(serve, http, frontend, n):
    """V10: max_tokens 0; the engine makes one token, which nobody sees or counts."""
    frontend.script = jumps
    url = await serve()
    answer = await post(http, url, max_tokens=0, logprobs=1, n=n)
    assert frontend.streams[0].sampling.max_tokens == 1
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] == 5
    for choice in answer["choices"]:
        assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (PROMPT, "length", None)
        assert choice["logprobs"]["tokens"] == ["The", " qu", "ick", " fox"]
        assert choice["logprobs"]["token_logprobs"] == [None, -2.5, -0.25, -9999.0]
    chunks = await stream(http, url, max_tokens=0, logprobs=1)
    assert "".join(chunk["text"] for chunk in chunks) == PROMPT
    assert joined(chunks, "tokens") == ["The", " qu", "ick", " fox"]
    assert [chunk["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    (choice,) = (await post(http, url, max_tokens=0, return_token_ids=True))["choices"]
    assert (choice["token_ids"], choice["prompt_token_ids"], choice["logprobs"]) == ([], PROMPT_IDS, None)


@pytest.mark.parametrize("end", [finish("stop", stop_reason=7), finish("repetition"), finish("length")])
async def test_the_prompt_alone_ends_by_length_whatever_the_token_was(serve, http, frontend, end):
    prompt = PromptDetails(PROMPT_IDS, PROMPT)
    frontend.script = lambda stream: stream.push(delta("x", [1], end=end, prompt=prompt))
    (choice,) = (await post(http, await serve(), max_tokens=0))["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (PROMPT, "length", None)


async def test_a_fault_with_the_prompt_alone_stays_one(serve, http, frontend):
    frontend.script = lambda stream: stream.push(delta(end=finish("error", message="the worker died")))
    async with http.post(await serve() + "/v1/completions", json={**BODY, "max_tokens": 0}) as response:
        assert response.status == 500


async def test_several_prompts_each_echo_their_own(serve, http, frontend):
    def script(stream):
        prompt = PromptDetails([1], stream.prompt.text)
        for choice in range(stream.num_choices):
            stream.push(delta("!", [1], choice=choice, end=finish(), prompt=prompt))

    frontend.script = script
    url = await serve()
    answer = await post(http, url, prompt=["ab", "c"], n=2)
    assert [choice["text"] for choice in answer["choices"]] == ["ab!", "ab!", "c!", "c!"]
    answer = await post(http, url, prompt=["ab", "c"], max_tokens=0)
    assert [choice["text"] for choice in answer["choices"]] == ["ab", "c"]


@pytest.mark.parametrize(
    ("text", "pieces", "first"),
    [
        ("äb", [b"\xa4", b"b"], "\ufffd"),  # the first token is half a character
        ("hi", [b"h", b"i"], ""),  # it is a mark, which has no text
        ("h", [b"hello"], ""),  # the others' bytes are more than the text
        ("x", [], "x"),
    ],
)
async def test_the_text_of_the_first_token_is_what_the_others_leave(serve, http, frontend, text, pieces, first):
    tokens = [TokenText(piece.decode("utf-8", "replace"), piece, -1.0, []) for piece in pieces]
    prompt = PromptDetails(list(range(len(pieces) + 1)), text, tokens)
    frontend.script = lambda stream: stream.push(
        delta("!", [1], logprobs=[TokenText("!", b"!", -1.0, [])], end=finish(), prompt=prompt)
    )
    logprobs = (await post(http, await serve(), logprobs=0))["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [first, *(token.text for token in tokens), "!"]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert len(logprobs["text_offset"]) == len(tokens) + 2


async def test_echo_and_prompt_logprobs_together(serve, http, frontend):
    """The engine is asked for the larger number; each field shows its own."""
    frontend.script = jumps
    url = await serve()
    for logprobs, prompt_logprobs in [(0, 2), (2, 0)]:
        (choice,) = (await post(http, url, logprobs=logprobs, prompt_logprobs=prompt_logprobs))["choices"]
        assert frontend.streams[-1].sampling.prompt_logprobs == 2
        assert len(choice["prompt_logprobs"][1]) == prompt_logprobs + 1
        assert len(choice["logprobs"]["top_logprobs"][1]) == logprobs + 1


async def test_suffix_is_refused(serve, http):
    async with http.post(await serve() + "/v1/completions", json={**BODY, "suffix": "x"}) as response:
        error = json.loads(await response.read())["error"]
    assert (response.status, error["param"]) == (400, "suffix")
