"""Chat templates against transformers' own rendering; the sandbox; errors."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from callboard.checkpoints import Checkpoint
from callboard.errors import ConfigError, InvalidRequest
from callboard.mailbox.messages.requests import ChatMessage, ToolCall
from callboard.text import ChatTemplate, Tokenizer, load_tokenizer

CHATML = (
    "{%- for message in messages %}\n"
    "    {%- if message['role'] == 'system' and not loop.first %}\n"
    "        {{ raise_exception('the system message must come first') }}\n"
    "    {%- endif %}\n"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "<|im_start|>assistant\n"
    "{% endif %}\n"
)
TOOLS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'skip' %}{% continue %}{% endif %}"
    "[{{ m.role }}]{% generation %}{% if m.content is not none %}{{ m.content }}{% endif %}{% endgeneration %}"
    "{% for call in m.tool_calls or [] %}<{{ call.type }}:{{ call.id }}:{{ call.function.name }}"
    "({{ call.function.arguments | tojson }})>{% endfor %}"
    "{% if m.tool_call_id is defined %}#{{ m.tool_call_id }}{% endif %}{% if m.name %}@{{ m.name }}{% endif %}"
    "{% endfor %}{{ eos_token }}{{ {'b': '<é>', 'a': 1} | tojson(indent=1, sort_keys=true) }}"
    "{% set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}{% endfor %}"
    "{{ ns.count }}"
    "{% if tools %}tools{% endif %}"
)
MESSAGES = (
    ChatMessage("system", "You are <b>terse</b>."),
    ChatMessage("user", "  Wie groß ist 日本? "),
    ChatMessage("assistant", "Let me look.", tool_calls=(ToolCall("c1", "look", '{"q": "日本", "n": [1, null]}'),)),
    ChatMessage("tool", "377,975", name="look", tool_call_id="c1"),
    ChatMessage("skip", "not seen"),
)
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, *messages: ChatMessage, **options: object) -> str:
    return ChatTemplate(source, SPECIALS).render(messages, **options)


@pytest.mark.slow
@pytest.mark.parametrize("source", [CHATML, TOOLS])
@pytest.mark.parametrize("opens_answer", [True, False])
def test_transformers_renders_the_same(source: str, opens_answer: bool) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    plain: list[dict[str, object]] = [
        {"role": "system", "content": "You are <b>terse</b>."},
        {"role": "user", "content": "  Wie groß ist 日本? "},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [
                {
                    "type": "function",
                    "id": "c1",
                    "function": {"name": "look", "arguments": {"q": "日本", "n": [1, None]}},
                }
            ],
        },
        {"role": "tool", "content": "377,975", "name": "look", "tool_call_id": "c1"},
        {"role": "skip", "content": "not seen"},
    ]
    oracle, _ = utils.render_jinja_template(
        [plain], chat_template=source, add_generation_prompt=opens_answer, **SPECIALS
    )
    assert render(source, *MESSAGES, add_generation_prompt=opens_answer) == oracle[0]


def test_what_a_template_sees_of_a_message() -> None:
    assert render("{{ messages | tojson }}", *MESSAGES[3:], ChatMessage("assistant", None)) == (
        '[{"role": "tool", "content": "377,975", "name": "look", "tool_call_id": "c1"}, '
        '{"role": "skip", "content": "not seen"}, {"role": "assistant", "content": null}]'
    )


@pytest.mark.parametrize("arguments", ["", "no json", "[1]", '"text"', "{" * 5, "[" * 100_000])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    message = ChatMessage("assistant", None, tool_calls=(ToolCall("c", "f", arguments),))
    assert render("{{ messages[0].tool_calls[0].function.arguments is string }}", message) == "True"


def test_raise_exception_is_the_requests_fault() -> None:
    with pytest.raises(InvalidRequest, match="the system message must come first") as caught:
        render(CHATML, ChatMessage("user", "x"), ChatMessage("system", "y"))
    assert (caught.value.status, caught.value.param) == (400, "messages")


def test_no_content_is_none_to_templates_that_ask_and_empty_text_to_those_that_join() -> None:
    call = ChatMessage("assistant", None, tool_calls=(ToolCall("c1", "f", "{}"),))
    asking = "{% set m = messages[0] %}{% if m.content is none %}<{{ m.tool_calls[0].function.name }}>{% endif %}"
    assert render(asking, call) == "<f>"
    joining = "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ';' }}{% endfor %}"
    assert render(joining, ChatMessage("user", "x"), call) == "user:x;assistant:;"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' + 1 }}",
        "{{ 1 + messages[0].content }}",
        "{{ messages[9].role }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ range(10 ** 9) | list }}",
        "{{ none() }}",
        "{{ messages | sum }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_other_errors_while_rendering_are_too(source: str) -> None:
    with pytest.raises(InvalidRequest, match=r"the chat template cannot render these messages: \S") as caught:
        render(source, ChatMessage("user", None))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__closure__ }}{{ strftime_now.__closure__[0].cell_contents }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ ('{0.' ~ '__class__}') | format_map(messages) }}",
        "{{ messages | attr('__class__') | attr('__mro__') }}{{ (messages | attr('__class__')).x }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(__init__=1) }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages.clear() }}",
        "{% import 'os' as os %}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    with pytest.raises((InvalidRequest, ConfigError)):
        render(source, ChatMessage("user", "x"))


@pytest.mark.parametrize("source", ["{% for %}", "{{ 'a' ", "{% endif %}", "{% unknown %}", "{{ x | no_such_filter }}"])
def test_a_syntax_error_is_found_at_the_start(source: str) -> None:
    with pytest.raises(ConfigError, match=r"the chat template has a syntax error in line 2: \S"):
        ChatTemplate("\n" + source, {})


def test_the_time_is_the_one_given() -> None:
    then = datetime.datetime(2024, 7, 26, 13, 5)
    assert render("{{ strftime_now('%d %b %Y') }}", now=then) == "26 Jul 2024"
    assert render("{{ strftime_now('%Y') | int > 2023 }}") == "True"


# -- where a model keeps it -------------------------------------------------------------------------------------------

Write = Callable[..., Checkpoint]


def rendered(tokenizer: Tokenizer) -> str:
    assert tokenizer.chat_template is not None
    return tokenizer.chat_template.render([ChatMessage("user", "x")])


def test_places_of_a_template_in_a_directory(byte_level_backend: tokenizers.Tokenizer, write_tokenizer: Write) -> None:
    config: dict[str, object] = {"eos_token": "<|end|>", "chat_template": "config {{ eos_token }}"}
    several = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "the default"}]
    assert rendered(load_tokenizer(write_tokenizer(byte_level_backend, config))) == "config <|end|>"
    beside = write_tokenizer(byte_level_backend, config, {"chat_template.jinja": "file {{ eos_token }}"})
    assert rendered(load_tokenizer(beside)) == "file <|end|>"
    named = write_tokenizer(byte_level_backend, {"chat_template": several})
    assert rendered(load_tokenizer(named)) == "the default"
    assert load_tokenizer(write_tokenizer(byte_level_backend, {})).chat_template is None


def test_a_template_of_the_users_own_replaces_the_models(smollm2_gguf: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint("x", "gguf", str(smollm2_gguf), "x")
    own = tmp_path / "own.jinja"
    own.write_text("{{ bos_token }}{{ unk_token }}{{ pad_token }}")
    assert rendered(load_tokenizer(checkpoint, chat_template_path=str(own))) == "<|im_start|><|endoftext|><|im_end|>"
    with pytest.raises(ConfigError, match="cannot read the chat template"):
        load_tokenizer(checkpoint, chat_template_path=str(tmp_path / "none.jinja"))
    own.write_text("{% if %}")
    with pytest.raises(ConfigError, match="syntax error in line 1"):
        load_tokenizer(checkpoint, chat_template_path=str(own))
