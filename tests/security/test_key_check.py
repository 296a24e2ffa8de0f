"""Keys: compared as digests, all of them, in constant time; the file's mode; never shown."""

from __future__ import annotations

import ast
import hmac
import inspect
import json
import logging
from pathlib import Path

import aiohttp
import pytest
from fake_frontend import FakeFrontend, serve_fake

from callboard.errors import ConfigError, RequestError
from callboard.server import api_keys
from callboard.server.api_keys import ApiKeys, read_api_keys

KEYS = (b"first-secret", b"second-secret-which-is-longer", b"third")


@pytest.mark.parametrize("key", KEYS)
def test_known_keys_are_let_in(key: bytes) -> None:
    ApiKeys(KEYS).check(f"Bearer {key.decode()}")
    ApiKeys(KEYS).check(f"bearer  {key.decode()} ")


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Basic first-secret", "first-secret", "Bearer first-secre", "Bearer first-secrett",
     "Bearer FIRST-SECRET", "Bearer third fourth", "Bearer \udcff", "Bearer ä", "Bearer " + "x" * 10_000],
)  # fmt: skip
def test_others_are_a_401_that_does_not_repeat_them(header: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        ApiKeys(KEYS).check(header)
    assert caught.value.status == 401
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("given", [*KEYS, b"unknown", b""])
def test_every_key_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch, given: bytes) -> None:
    """By structure: one comparison a key, by `hmac.compare_digest`, of values of one length, whatever was sent."""
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def count(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return compare(left, right)

    keys = ApiKeys(KEYS)
    monkeypatch.setattr(api_keys.hmac, "compare_digest", count)
    try:
        keys.check(f"Bearer {given.decode()}")
    except RequestError:
        assert given not in KEYS
    assert compared == [(32, 32)] * len(KEYS)


def test_nothing_in_the_check_ends_early() -> None:
    tree = ast.parse(inspect.getsource(ApiKeys.check).lstrip().replace("\n    ", "\n"))
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    assert len(loops) == 1
    inside = [node for statement in loops[0].body for node in ast.walk(statement)]
    assert not any(isinstance(node, ast.If | ast.Break | ast.Return | ast.BoolOp | ast.Compare) for node in inside)


def test_keys_are_not_kept_and_not_shown() -> None:
    keys = ApiKeys(KEYS)
    assert all(key.decode() not in repr(keys) + repr(vars(keys)) for key in KEYS)


def write(path: Path, mode: int, content: bytes = b"first-secret\n\n second \n") -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_a_file_that_all_can_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    with caplog.at_level(logging.WARNING, "callboard.server"):
        keys = read_api_keys(write(tmp_path / "keys", mode))
    assert keys is not None
    keys.check("Bearer second")
    assert [f"{mode:03o}" in record.getMessage() for record in caplog.records] == [True] * warns
    assert "secret" not in caplog.text


@pytest.mark.parametrize("mode", [0o602, 0o666])
def test_a_file_that_all_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match="can be written by every user"):
        read_api_keys(write(tmp_path / "keys", mode))


def test_what_is_wrong_with_a_file_is_said_without_its_content(tmp_path: Path) -> None:
    cases = [
        (write(tmp_path / "binary", 0o600, b"first-secret\xff"), "not UTF-8"),
        (write(tmp_path / "empty", 0o600, b" \n\n"), "holds no key"),
        (str(tmp_path), "cannot be read"),
        (str(tmp_path / "none"), "No such file"),
    ]
    for path, says in cases:
        with pytest.raises(ConfigError, match=says) as caught:
            read_api_keys(path)
        assert "secret" not in str(caught.value)
        assert caught.value.__cause__ is None


async def test_no_answer_and_no_log_line_holds_a_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server, url = await serve_fake(FakeFrontend(), api_keys_file=write(tmp_path / "keys", 0o600))
    shown = ""
    try:
        async with aiohttp.ClientSession() as session:
            for key in ("first-secret", "wrong-secret"):
                headers = {"Authorization": f"Bearer {key}"}
                for path in ("/v1/models", "/v1/models/x", "/v1/none", "/metrics", "/health"):
                    async with session.get(url + path, headers=headers) as response:
                        assert (response.status == 401) == (key == "wrong-secret" and path.startswith("/v1"))
                        shown += await response.text() + json.dumps(dict(response.headers))
    finally:
        await server.close()
    assert "secret" not in shown + caplog.text
