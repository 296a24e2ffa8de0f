"""Templates that want all the time, memory or text there is fail the request at hand, and nothing else."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from callboard.errors import ConfigError, EngineFailure, InvalidRequest
from callboard.mailbox.messages.requests import ChatMessage
from callboard.text import ChatTemplate, render_process
from callboard.text.chat_template import MAX_SOURCE_CHARS
from callboard.text.render_process import Kind, RenderLimits, RenderProcess

SMALL = RenderLimits(processor_s=0.15, memory_bytes=256 << 20, output_chars=100_000)
USER = [ChatMessage("user", "hi")]


@pytest.fixture(scope="module")
def small() -> Iterator[RenderProcess]:
    process = RenderProcess(SMALL)
    yield process
    process.close()


@pytest.fixture
def start() -> Iterator[Callable[..., RenderProcess]]:
    started: list[RenderProcess] = []

    def begin(limits: RenderLimits = SMALL) -> RenderProcess:
        started.append(RenderProcess(limits))
        return started[-1]

    yield begin
    for process in started:
        process.close()


def pid_of(process: RenderProcess) -> int:
    assert process._running is not None
    return process._running[0].pid


# `n` hides a number from the compiler, which would work the constant out.
HOSTILE = {
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "text times a number": "{% set n = messages | length %}{{ 'a' * (n * 10 ** 10) }}",
    "the same, a constant": "{{ 'a' * 10 ** 10 }}",
    "list times a number": "{{ ([0] * (messages | length * 10 ** 10)) | length }}",
    "power": "{{ (messages | length + 9) ** (10 ** 9) }}",
    "power, a constant": "{{ 9 ** (9 ** 9) }}",
    "round": "{{ (1.5 * messages | length) | round(10 ** 9, 'ceil') }}",
    "width of %": "{{ ('%' ~ 900000000 ~ 'd') % 3 }}",
    "width of format": "{{ ('{:' ~ 900000000 ~ '}').format(messages | length) }}",
    "center": "{{ messages[0].role | center(messages | length * 10 ** 9) }}",
    "ljust": "{{ messages[0].role.ljust(10 ** 9) }}",
    "zfill": "{{ messages[0].role.zfill(10 ** 9) }}",
    "expandtabs": "{{ (messages[0].role ~ '\t').expandtabs(10 ** 9) }}",
    "indent": "{{ messages | tojson(indent=10 ** 9) }}",
    "indent of text": "{{ messages[0].role | indent(10 ** 9, true) }}",
    "batch": "{{ messages | batch(10 ** 9, 0) | list | length }}",
    "lipsum": "{{ lipsum(n=10 ** 9) }}",
    "replace": "{% set x = messages[0].role * 250000 %}{{ x.replace('u', x) | length }}",
    "join": "{% set x = messages[0].role * 250000 %}{{ (x | list) | join(x) | length }}",
    "doubling text": "{% set n = namespace(t='ab') %}{% for i in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "doubling lists": "{% set n = namespace(a=0) %}{% for i in range(40) %}{% set n.a = [n.a]*2 %}{% endfor %}{{ n }}",
    "comparing doubled lists": (
        "{% set n = namespace(a=[0], b=[0]) %}{% for i in range(60) %}"
        "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}"
    ),
    "branching macro": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "growing list": "{% set n = namespace(a=[]) %}{% for i in range(99999) %}{% set n.a = n.a + [i] %}{% endfor %}",
    "text past the limit": "{{ 'a' * 100001 }}",
    "many small pieces": "{% for i in range(99999) %}{{ 'ab' }}{% endfor %}",
    "deep expression": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep blocks": "{% if 1 %}" * 5000 + "{% endif %}" * 5000,
    "long number": "{{ " + "9" * 10_000 + " }}",
    "deep lists": "{% set n = namespace(a=[0]) %}{% for i in range(99999) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a }}",
}  # fmt: skip
OF_A_KIND = {
    "expandtabs", "ljust", "zfill", "center", "width of format", "indent of text", "batch", "lipsum", "join",
    "doubling text", "comparing doubled lists", "branching macro", "growing list", "power", "list times a number",
    "deep blocks",
}  # fmt: skip
"""Others test the same limit in the same way."""
NAMES = [pytest.param(name, marks=[pytest.mark.nightly] * (name in OF_A_KIND)) for name in HOSTILE]


@pytest.mark.parametrize("name", NAMES)
def test_a_hostile_template_is_a_400_or_refused_at_the_start(small: RenderProcess, name: str) -> None:
    with pytest.raises((InvalidRequest, ConfigError)) as caught:
        ChatTemplate(HOSTILE[name], {}, process=small).render(USER)
    assert len(str(caught.value)) < 3000
    if isinstance(caught.value, InvalidRequest):
        assert (caught.value.status, caught.value.param) == (400, "messages")
    assert ChatTemplate("{{ messages[0].role }}", {}, process=small).render(USER) == "user"


def test_the_limit_is_named(small: RenderProcess) -> None:
    cases = {
        "nested loops": r"takes more than 0\.15 s of processor time",
        "text times a number": r"needs more than 268,435,456 bytes of memory",
        "text past the limit": r"has 100,001 characters, the limit is 100,000",
    }
    for name, says in cases.items():
        with pytest.raises(InvalidRequest, match=says):
            ChatTemplate(HOSTILE[name], {}, process=small).render(USER)
    with pytest.raises(ConfigError, match=r"own\.jinja cannot be compiled: it takes more than 0\.15 s"):
        ChatTemplate(HOSTILE["power, a constant"], {}, where="own.jinja", process=small)


def test_a_source_that_is_too_long_is_not_looked_at() -> None:
    with pytest.raises(ConfigError, match=f"the limit is {MAX_SOURCE_CHARS:,}"):
        ChatTemplate("x" * (MAX_SOURCE_CHARS + 1), {})
    assert ChatTemplate("x" * MAX_SOURCE_CHARS, {}).render(USER) == "x" * MAX_SOURCE_CHARS


def test_an_error_of_any_length_is_cut(small: RenderProcess) -> None:
    template = ChatTemplate("{{ raise_exception('x' * 90000) }}", {}, process=small)
    with pytest.raises(InvalidRequest, match=r"x{2000}$") as caught:
        template.render(USER)
    assert len(str(caught.value)) < 2100


def test_the_largest_request_body_is_rendered() -> None:
    """16 MiB in one message, of each width that Python stores text in; the default limits leave room for it."""
    template = ChatTemplate("{% for m in messages %}{{ '<' + m.role + '>' + m.content | trim }}{% endfor %}", {})
    for text in ("x" * (16 << 20), "日" * (5 << 20), "a😀" * (3 << 20)):
        assert template.render([ChatMessage("user", text)]) == f"<user>{text}"


# -- the process ------------------------------------------------------------------------------------------------------


def test_a_process_that_was_killed_is_replaced_unseen(start: Callable[..., RenderProcess]) -> None:
    process = start()
    template = ChatTemplate("{{ messages[0].content }}", {}, process=process)
    first = pid_of(process)
    os.kill(first, signal.SIGKILL)
    assert template.render(USER) == "hi"
    assert pid_of(process) != first


def test_a_process_that_stands_still_is_ended(start: Callable[..., RenderProcess]) -> None:
    process = start(RenderLimits(silence_s=0.2))
    process.start()
    os.kill(pid_of(process), signal.SIGSTOP)
    assert process.ask(b"{}").kind == Kind.LIMIT
    assert process._running is None


def test_signals_to_the_whole_group_do_not_end_it(start: Callable[..., RenderProcess]) -> None:
    process = start()
    template = ChatTemplate("{{ messages[0].content }}", {}, process=process)
    first = pid_of(process)
    os.kill(first, signal.SIGINT)
    os.kill(first, signal.SIGTERM)
    assert template.render(USER) == "hi"
    assert pid_of(process) == first


def test_one_that_cannot_run_is_said(
    start: Callable[..., RenderProcess], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    process = start()
    template = ChatTemplate("x", {}, process=process)
    process.close()
    broken = tmp_path / "broken.py"
    broken.write_text("import sys; sys.exit(3)")
    monkeypatch.setattr(render_process, "_PROGRAM", broken)
    with pytest.raises(EngineFailure, match="ended: exit status 3"):
        template.render(USER)
    with pytest.raises(ConfigError, match="exit status 3"):
        ChatTemplate("x", {}, process=process)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with pytest.raises(EngineFailure, match="No such file"):
        template.render(USER)


def test_it_ends_with_its_owner() -> None:
    """Killed without a chance to say so, in the middle of a rendering without end."""
    code = (
        "from callboard.text.render_process import shared\nfrom callboard.text import ChatTemplate\n"
        "template = ChatTemplate({source!r}, {{}})\nprint(shared._running[0].pid, flush=True)\n"
        "template.render([])\ninput()"
    )
    command = [sys.executable, "-P", "-c", code.format(source=HOSTILE["nested loops"])]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        pidfd = os.pidfd_open(int(owner.stdout.readline()))
    finally:
        owner.kill()
        owner.communicate()
    assert select.select([pidfd], [], [], 60)[0], "the process has outlived its owner"
    os.close(pidfd)


def test_threads_may_ask_at_once(small: RenderProcess) -> None:
    template = ChatTemplate("{{ messages[0].content }}", {}, process=small)
    wrong: list[str] = []

    def ask(name: str) -> None:
        for index in range(50):
            text = f"{name} {index}"
            if template.render([ChatMessage("user", text)]) != text:
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
