"""Whose request it is: the key says it, else a header or a field; and what a tenant is told of others."""

from __future__ import annotations

import asyncio

import pytest

from callboard.errors import ConfigError, RequestError
from callboard.server.api_keys import ApiKeys, read_api_keys
from callboard.server.tenants import ANY, is_tenant_name, name_of_key

BODY = {"prompt": "a"}
KEYS = "plain\nred-1 red\n red-2   red \nblue blue-team\nplain-2\ngate *\n"


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def ask(http, url, headers=None, **more):
    """(status, JSON)."""
    async with http.post(url + "/v1/completions", json={**BODY, **more}, headers=headers) as response:
        return response.status, await response.json()


# The file


def keys_of(tmp_path, text):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    return read_api_keys(str(path))


def test_a_line_is_a_key_or_a_key_and_its_tenant(tmp_path):
    keys = keys_of(tmp_path, KEYS)
    told = {key: keys.check(f"Bearer {key}") for key in ("plain", "red-1", "red-2", "blue", "plain-2", "gate")}
    assert told == {
        "plain": name_of_key(b"plain"), "red-1": "red", "red-2": "red", "blue": "blue-team",
        "plain-2": name_of_key(b"plain-2"), "gate": ANY,
    }  # fmt: skip
    for wrong in ("red-1 red", "red", "*", "blue-team"):
        with pytest.raises(RequestError):
            keys.check(f"Bearer {wrong}")


def test_keys_without_a_name_are_tenants_apart_that_do_not_show_the_key():
    names = [name_of_key(f"key {number}".encode()) for number in range(1000)]
    assert len(set(names)) == len(names) and all(is_tenant_name(name) for name in names)
    assert all(len(name) == len("key-") + 8 for name in names)
    assert name_of_key(b"key 1") == names[1], "the same in every process"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ok\nsecret red blue\n", "line 2 is neither"),
        ("secret r\xe4d\n", "line 1 is neither"),
        ("secret " + "r" * 129 + "\n", "line 1 is neither"),
        ("secret red\nother\nsecret blue\n", "line 3 gives a key another tenant"),
        ("secret\nsecret blue\n", "line 2 gives a key another tenant"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(tmp_path, text, says):
    with pytest.raises(ConfigError, match=says) as caught:
        keys_of(tmp_path, text)
    assert "secret" not in str(caught.value)


def test_a_line_twice_is_one_key(tmp_path):
    keys = keys_of(tmp_path, "a\nb red\nb red\na\nc\n")
    assert [keys.check(f"Bearer {key}") for key in "abc"] == [name_of_key(b"a"), "red", name_of_key(b"c")]


def test_each_of_many_keys_has_its_own_name():
    names = {f"k{number}".encode(): f"t{number}" for number in range(20)}
    keys = ApiKeys(names, names)
    assert [keys.check(f"Bearer {key.decode()}") for key in names] == list(names.values())


# Requests


async def test_without_keys_the_header_says_it_then_the_field(serve, http, frontend):
    url = await serve()
    for headers, fields in (
        ({}, {}), ({"X-Tenant": "red"}, {}), ({}, {"tenant": "blue"}), ({"x-tenant": "red"}, {"tenant": "blue"}),
        (bearer("whatever"), {"tenant": None}),
    ):  # fmt: skip
        assert (await ask(http, url, headers, **fields))[0] == 200
    assert [stream.tenant for stream in frontend.streams] == ["", "red", "blue", "red", ""]


async def test_with_keys_the_key_alone_says_it(serve, http, frontend, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    url = await serve(api_keys_file=str(tmp_path / "keys"))
    for key, headers, fields in (
        ("plain", {}, {}), ("red-1", {}, {"tenant": "red"}), ("red-2", {"X-Tenant": "blue-team"}, {}),
        ("gate", {"X-Tenant": "blue-team"}, {}), ("gate", {}, {"tenant": "new"}), ("gate", {}, {}),
    ):  # fmt: skip
        assert (await ask(http, url, {**bearer(key), **headers}, **fields))[0] == 200
    expected = [name_of_key(b"plain"), "red", "red", "blue-team", "new", ""]
    assert [stream.tenant for stream in frontend.streams] == expected
    status, answer = await ask(http, url, bearer("red-1"), tenant="blue-team")
    assert (status, answer["error"]["param"]) == (400, "tenant") and "'red'" in answer["error"]["message"]
    assert len(frontend.streams) == len(expected)


@pytest.mark.parametrize("name", ["*", "a b", "ä", "a\n", "a" * 129, "", 3])
async def test_a_name_that_is_none_is_a_400(serve, http, frontend, name):
    url = await serve()
    status, answer = await ask(http, url, tenant=name)
    assert (status, answer["error"]["param"]) == (400, "tenant")
    if isinstance(name, str) and name.isascii() and name.isprintable():
        status, answer = await ask(http, url, {"X-Tenant": name})
        assert (status, answer["error"]["param"]) == (400, "x-tenant")
    assert frontend.streams == []


async def test_every_prompt_of_a_list_is_its_tenants(serve, http, frontend):
    url = await serve()
    assert (await ask(http, url, {"X-Tenant": "red"}, prompt=["a", "b"]))[0] == 200
    assert [stream.tenant for stream in frontend.streams] == ["red", "red"]


# What a tenant is told


async def listed(http, url, key):
    async with http.get(url + "/v1/requests", headers=bearer(key)) as response:
        assert response.status == 200
        return [entry["id"] for entry in (await response.json())["data"]]


async def test_a_key_is_told_of_its_own_tenants_requests(serve, http, frontend, tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    url = await serve(api_keys_file=str(tmp_path / "keys"))
    frontend.script = lambda stream: None
    tasks, streams = [], []
    for key in ("red-1", "blue"):
        headers = {**bearer(key), "X-Request-Id": "same"}
        tasks.append(asyncio.create_task(http.post(url + "/v1/completions", json=BODY, headers=headers)))
        streams.append(await frontend.arrivals.get())
    red, blue = (stream.request_id for stream in streams)
    assert [await listed(http, url, key) for key in ("red-1", "red-2", "blue", "plain", "gate")] == [
        [red], [red], [blue], [], [red, blue],
    ]  # fmt: skip
    for key, name, status, found in (
        ("red-2", red, 200, red), ("red-2", blue, 404, None), ("red-2", "same", 200, red), ("blue", "same", 200, blue),
        ("plain", "same", 404, None), ("gate", red, 200, red), ("gate", "same", 200, blue),
    ):  # fmt: skip
        async with http.get(f"{url}/v1/requests/{name}", headers=bearer(key)) as response:
            answer = await response.json()
            assert (response.status, answer.get("id")) == (status, found)
            assert status == 200 or answer["error"]["code"] == "request_not_found"
    for path in ("/v1/requests", f"/v1/requests/{red}"):
        async with http.get(url + path) as response:
            assert response.status == 401
    for stream in streams:
        stream.push(RequestError("no"))
    for task in tasks:
        (await task).release()
