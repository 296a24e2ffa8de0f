"""Chat templates against transformers' own rendering; the sandbox; errors."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path

import msgspec
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


USES = (
    "{% for m in messages %}{{ m.content }}{% endfor %}{{ think }}{{ '/' ~ list | join(',') }}{{ documents | tojson }}"
)


@pytest.mark.slow
@pytest.mark.parametrize("final", ["The capital is", "  two words  ", "line\n", "", " ", "<|im_end|>\n", "x"])
@pytest.mark.parametrize("source", [CHATML, TOOLS])
def test_transformers_leaves_the_same_final_message_open(source: str, final: str) -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    plain = [{"role": "user", "content": "x"}, {"role": "assistant", "content": final}]
    oracle, _ = utils.render_jinja_template(
        [plain], chat_template=source, add_generation_prompt=False, continue_final_message=True, **SPECIALS
    )
    messages = [ChatMessage("user", "x"), ChatMessage("assistant", final)]
    rendered = render(source, *messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == oracle[0]


@pytest.mark.parametrize(
    ("source", "content"),
    [
        ("{{ messages[0].content }}", "an answer"),  # the template leaves the final message out
        ("{{ messages[-1].content | upper }}", "an answer"),
        ("{{ messages[-1].content.split('</think>')[-1] }}", "<think>so</think>an answer"),
        (CHATML, None),
    ],
)
def test_a_final_message_that_is_not_in_the_text_cannot_be_continued(source: str, content: str | None) -> None:
    messages = ChatMessage("user", "x"), ChatMessage("assistant", content)
    with pytest.raises(InvalidRequest, match="the final message") as caught:
        render(source, *messages, add_generation_prompt=False, continue_final_message=True)
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequest, match="the final message"):
        render(source, add_generation_prompt=False, continue_final_message=True)


def test_a_message_that_is_there_twice_is_cut_at_its_last_place() -> None:
    source = "{% for m in messages %}{{ m.content }}|{% endfor %}{{ messages[-1].content | trim }}!"
    messages = ChatMessage("user", "x"), ChatMessage("assistant", "an answer ")
    rendered = render(source, *messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == "x|an answer |an answer"


def test_an_open_message_and_a_new_one_exclude_each_other() -> None:
    with pytest.raises(InvalidRequest, match="set add_generation_prompt to false") as caught:
        render(CHATML, ChatMessage("user", "x"), continue_final_message=True)
    assert caught.value.param == "continue_final_message"


@pytest.mark.slow
def test_transformers_gives_further_variables_to_the_template_too() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    variables = {"think": False, "list": [1, "é", None], "unused": {"a": 1}}
    oracle, _ = utils.render_jinja_template([[{"role": "user", "content": "x"}]], chat_template=USES, **variables)
    given = msgspec.json.encode(variables)
    assert render(USES, ChatMessage("user", "x"), template_kwargs=given) == oracle[0]
    seen = render(USES, ChatMessage("user", "x"), template_kwargs=b'{"documents": [{"title": "t"}]}')
    assert seen == 'x/[{"title": "t"}]'


WITH_TOOLS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{{ tool.function.name }}{% endfor %}"
    "{% for m in messages %}{{ m.reasoning_content }}|{{ m.content }}{% endfor %}"
)


@pytest.mark.slow
def test_transformers_tells_a_template_of_the_same_tools() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    schema = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Tōkyō", "<b>"]}}, "required": []}
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}} for name in ("b", "a")]
    plain = [{"role": "assistant", "content": "x", "reasoning_content": "why"}]
    oracle, _ = utils.render_jinja_template([plain], tools=tools, chat_template=WITH_TOOLS)
    message = ChatMessage("assistant", "x", reasoning_content="why")
    assert render(WITH_TOOLS, message, add_generation_prompt=False, tools=msgspec.json.encode(tools)) == oracle[0]
    assert render(WITH_TOOLS, message, add_generation_prompt=False) == "why|x"


@pytest.mark.parametrize("text", [b"{}", b"[1]", b"[{]", b'[{"a": "\xff"}]'])
def test_tools_are_a_json_list_of_objects(text: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("x", ChatMessage("user", "x"), tools=text)
    assert (caught.value.status, caught.value.param) == (400, "tools")


@pytest.mark.parametrize(
    "name", ["messages", "add_generation_prompt", "tools", "bos_token", "raise_exception", "tokenize"]
)
def test_what_a_template_gets_from_the_server_cannot_be_set(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"must not set '{name}'") as caught:
        render(CHATML, ChatMessage("user", "x"), template_kwargs=b'{"a": 1, "%s": 2}' % name.encode())
    assert (caught.value.status, caught.value.param) == (400, "chat_template_kwargs")


@pytest.mark.parametrize(
    "text", [b"[1]", b"1", b"{", b'{"a": }', b'{"a": 1} 2', b"\xff", b'{"a": "\xff"}', b'{"a": 1e}']
)
def test_further_variables_are_a_json_object(text: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("x", ChatMessage("user", "x"), template_kwargs=text)
    assert caught.value.status == 400


@pytest.mark.parametrize("depth", [500, 5_000, 100_000])
def test_variables_may_be_nested_as_deeply_as_can_be_read(depth: int) -> None:
    nested = b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    process = ChatTemplate("{{ a | length }}", {})
    try:
        assert process.render([ChatMessage("user", "x")], template_kwargs=nested) == str(min(depth, 1))
    except InvalidRequest as error:
        assert error.status == 400
    assert process.render([ChatMessage("user", "x")], template_kwargs=b'{"a": "xyz"}') == "3"


def test_what_a_template_sees_of_a_message() -> None:
    assert render("{{ messages | tojson }}", *MESSAGES[3:], ChatMessage("assistant", None)) == (
        '[{"role": "tool", "content": "377,975", "name": "look", "tool_call_id": "c1"}, '
        '{"role": "skip", "content": "not seen"}, {"role": "assistant", "content": null}]'
    )


@pytest.mark.parametrize("arguments", ["", " "])
def test_no_arguments_are_an_object(arguments: str) -> None:
    """K07: clients send them for functions without parameters, and templates go through their members."""
    message = ChatMessage("assistant", None, tool_calls=(ToolCall("c", "f", arguments),))
    template = "{% for name, value in messages[0].tool_calls[0].function.arguments | items %}{{ name }}{% endfor %}."
    assert render(template, message) == "."


@pytest.mark.parametrize("arguments", ["no json", "[1]", '"text"', "{" * 5, "[" * 100_000])
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
