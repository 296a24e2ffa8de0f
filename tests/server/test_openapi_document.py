"""/openapi.json: valid by the specification's own checker, of all endpoints and fields, as the server answers."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from fake_frontend import MODEL, events_of
from openapi_spec_validator import OpenAPIV31SpecValidator

from callboard.server import openapi

MESSAGES = [{"role": "user", "content": "hi"}]
EXAMPLES = {
    "/v1/chat/completions": {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, "return_token_ids": True},
    "/v1/completions": {"prompt": "a", "logprobs": 1, "return_token_ids": True, "n": 2},
    "/tokenize": {"prompt": "a", "return_token_strs": True},
    "/v1/tokenize": {"messages": MESSAGES},
    "/detokenize": {"tokens": [1]},
    "/v1/detokenize": {"tokens": []},
}


async def get_json(http, url):
    async with http.get(url) as response:
        assert (response.status, response.content_type) == (200, "application/json")
        return await response.json()


def validator(document, media):
    """Of a body, by the schema of its media type in the document."""
    return jsonschema.Draft202012Validator({**media["schema"], "components": document["components"]})


def operations(document):
    return [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


@pytest.mark.parametrize("has_keys", [False, True])
async def test_the_document_is_valid(serve, http, tmp_path, has_keys):
    (tmp_path / "keys").write_text("secret\n")
    url = await serve(**({"api_keys_file": str(tmp_path / "keys")} if has_keys else {}))
    document = await get_json(http, url + "/openapi.json")
    OpenAPIV31SpecValidator(document).validate()
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(ids) == len(set(ids))
    assert all(operation["summary"] for _, _, operation in operations(document))
    guarded = {path for path, _, operation in operations(document) if "security" in operation}
    assert guarded == (
        {path for path in document["paths"] if "v1" in path or "tokenize" in path} if has_keys else set()
    )
    assert ("securitySchemes" in document["components"]) == has_keys
    assert all(
        ("401" in operation["responses"]) == ("security" in operation) for _, _, operation in operations(document)
    )


async def test_all_that_is_served_is_in_it(serve, http):
    """What the application routes, by path and method, and nothing else."""
    url = await serve()
    document = await get_json(http, url + "/openapi.json")
    described = {(path, method) for path, method, _ in operations(document)}
    known = set()
    for path in (*document["paths"], "/v1/nothing", "/docs"):
        for method in ("get", "post"):
            place = url + re.sub(r"\{\w+\}", "any", path.replace("{model}", MODEL))
            async with http.request(method, place, json={} if method == "post" else None) as response:
                code = ((await response.json()).get("error") or {}).get("code") if response.status != 200 else None
                if code not in ("unknown_path", "method_not_allowed"):
                    known.add((path, method))
    assert known == described


@pytest.mark.parametrize("path", EXAMPLES)
async def test_answers_are_as_described(serve, http, path):
    url = await serve()
    document = await get_json(http, url + "/openapi.json")
    operation = document["paths"][path]["post"]
    body = operation["requestBody"]["content"]["application/json"]
    validator(document, body).validate(EXAMPLES[path])
    async with http.post(url + path, json=EXAMPLES[path]) as response:
        media = operation["responses"]["200"]["content"][response.content_type]
        validator(document, media).validate(await response.json())
    async with http.post(url + path, json={"model": 1}) as response:
        media = operation["responses"]["400"]["content"][response.content_type]
        validator(document, media).validate(await response.json())
    assert not validator(document, body).is_valid({"model": 1})


@pytest.mark.parametrize(
    "path", ["/v1/models", f"/v1/models/{MODEL}", "/health", "/ping", "/ready", "/load", "/startup"]
)
async def test_what_is_looked_up_is_as_described(serve, http, path):
    url = await serve()
    document = await get_json(http, url + "/openapi.json")
    described = document["paths"][path.replace(MODEL, "{model}")]["get"]["responses"]["200"]["content"]
    validator(document, described["application/json"]).validate(await get_json(http, url + path))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_events_are_as_described(serve, http, path):
    url = await serve()
    document = await get_json(http, url + "/openapi.json")
    events = document["paths"][path]["post"]["responses"]["200"]["content"]["text/event-stream"]
    body = {**EXAMPLES[path], "stream": True, "stream_options": {"include_usage": True}}
    async with http.post(url + path, json=body) as response:
        *chunks, done = events_of(await response.read())
    assert done == "[DONE]" and len(chunks) > 3
    chunk = {"schema": events["x-event-schema"]}
    for each in chunks:
        validator(document, chunk).validate(each)
    assert not validator(document, chunk).is_valid({**chunks[0], "choices": [{"index": "a"}]})


@pytest.mark.parametrize("path", EXAMPLES)
async def test_every_field_of_a_request_is_known_to_the_server(serve, http, path):
    """A field that the document has, and the server ignores, would be named in the answer."""
    url = await serve()
    document = await get_json(http, url + "/openapi.json")
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    properties = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["properties"]
    assert len(properties) > 1
    async with http.post(url + path, json={**dict.fromkeys(properties), **EXAMPLES[path]}) as response:
        assert response.status == 200, await response.text()
        assert "x-ignored-fields" not in response.headers


async def test_it_is_made_once_and_not_before_it_is_asked_for(serve, http, monkeypatch):
    made = []
    make = openapi.openapi_document
    monkeypatch.setattr(openapi, "openapi_document", lambda *args, **more: made.append(1) or make(*args, **more))
    url = await serve()
    assert made == []
    assert await get_json(http, url + "/openapi.json") == await get_json(http, url + "/openapi.json")
    assert made == [1]


async def test_accepted_values_of_what_is_not_supported(serve, http):
    """0.0, false and 1 stay what they are: Python takes them for the same."""
    document = await get_json(http, await serve() + "/openapi.json")
    properties = document["components"]["schemas"]["ChatCompletionRequest"]["properties"]
    assert json.dumps(properties["use_beam_search"]["enum"]) == "[null, false]"
    assert json.dumps(properties["length_penalty"]["enum"]) == "[null, 1.0]"
