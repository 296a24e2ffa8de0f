"""What a grammar writes calls by, recognising a family by its template, ids."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.tests.text.tool_call_texts import PROPERTIES, TOOLS, plain_values, read, write_calls
from callboard.text.tool_calls import FAMILIES, Tool, ToolTags, call_ids, detect_family, tool_tags

CALLS = [("run", '{"code": "a", "timeout": 2}'), ("get_time", "{}"), ("get_weather", '{"city": "</tool>", "days": 1}')]

each_family = pytest.mark.parametrize("family", sorted(FAMILIES))


def write_by_tags(tags: ToolTags, calls: list[tuple[str, str]]) -> str:
    """The calls as a model under the grammar writes them."""
    by_name = {tag.name: tag for tag in tags.tags}
    written = []
    for name, arguments in calls:
        body, marks = arguments, tags.parameters
        if marks is not None:
            body = "".join(
                marks.begin + key + marks.after_key + value + marks.end for key, value in plain_values(arguments)
            )
        written.append(by_name[name].begin + body + by_name[name].end)
    return tags.prefix + tags.separator.join(written) + tags.suffix


@each_family
def test_what_a_grammar_writes_is_read_back(family: str) -> None:
    tags = tool_tags(FAMILIES[family], TOOLS)
    for calls in (CALLS, CALLS[:1], CALLS[1:2]):
        text = write_by_tags(tags, calls)
        got = read(family, text)
        assert (got.content, [(name, json.loads(arguments)) for name, arguments in got.calls]) == (
            "",
            [(name, json.loads(arguments)) for name, arguments in calls],
        )
        assert text.startswith(tags.triggers)
    one = tool_tags(FAMILIES[family], TOOLS, is_parallel=False)
    text = write_by_tags(one, CALLS[:1])
    assert [name for name, _ in read(family, text, is_parallel=False).calls] == ["run"]
    assert text.startswith(one.triggers)


@each_family
def test_the_grammar_writes_what_the_templates_render(family: str) -> None:
    """But for ids and numbers of calls, which the templates know."""
    expected = write_calls(family, CALLS).replace(', "id": "A1b2C3d4E"', "")
    expected = re.sub(r"(functions\.\w+):\d", r"\1:0", expected)
    assert write_by_tags(tool_tags(FAMILIES[family], TOOLS), CALLS) == expected


@each_family
def test_tags_carry_the_schemas_and_names_as_json_strings(family: str) -> None:
    tags = tool_tags(FAMILIES[family], TOOLS)
    assert [(tag.name, json.loads(tag.schema)["properties"]) for tag in tags.tags] == list(PROPERTIES.items())
    assert json.loads(Tool("f").parameters)["properties"] == {}
    if FAMILIES[family].written.begin.startswith("{"):
        (tag,) = tool_tags(FAMILIES[family], [Tool('a"b')]).tags
        assert json.loads(tag.begin + "{}" + tag.end)["name"] == 'a"b'


def test_behind_reasoning_harmony_begins_a_message() -> None:
    tags = tool_tags(FAMILIES["harmony"], TOOLS, is_after_reasoning=True)
    assert tags.prefix + tags.tags[0].begin == (
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    )
    assert tool_tags(FAMILIES["hermes"], TOOLS, is_after_reasoning=True) == tool_tags(FAMILIES["hermes"], TOOLS)


@pytest.mark.parametrize(
    ("family", "excerpt"),
    [
        ("hermes", """{{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}"""),
        ("llama3", """{{- '<|start_header_id|>assistant<|end_header_id|>' }}{{- '"parameters": ' }}"""),
        ("llama3", """{{- "<|python_tag|>" + tool_call.name + ".call(" }}"""),
        ("mistral", """{{- "[TOOL_CALLS] [" }}{%- set out = tool_call.function|tojson %}"""),
        ("mistral_args", """{{- '[TOOL_CALLS]' + tool['function']['name'] + '[ARGS]' + arguments }}"""),
        (
            "deepseek_v3",
            "{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + "
            "tool['function']['name'] + '\\n' + '```json' + '\\n'}}",
        ),
        ("deepseek_v31", "{{'<｜tool▁call▁begin｜>'+ tool['function']['name'] + '<｜tool▁sep｜>'}}"),
        (
            "qwen3_coder",
            "{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}{{- '<parameter=' + args_name }}",
        ),
        ("glm", "{{ '\\n<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>"),
        ("kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>"),
        ("kimi_k2", "{{ '<|im_system|>tool_declare<|im_middle|>' -}}"),
        (
            "harmony",
            """{{- "<|start|>assistant to=" }}{{- "functions." + tool_call.name + "<|channel|>commentary " }}""",
        ),
        (None, "{% for message in messages %}{{'<|im_start|>' + message['role']}}{% endfor %}"),
        (None, ""),
    ],
)
def test_a_family_is_recognised_by_how_the_template_renders_a_call(family: str | None, excerpt: str) -> None:
    assert detect_family(excerpt) == family


@each_family
def test_every_marker_that_a_family_writes_is_named_as_one(family: str) -> None:
    row = FAMILIES[family]
    text = write_calls(family, CALLS)
    known = set(re.findall(r"<[|｜][^|｜]+[|｜]>|\[[A-Z_]+\]|</?(?:tool_call|arg_key|arg_value)>", text))
    assert known <= set(row.markers)


@given(key=st.text(max_size=40), index=st.integers(0, 500))
def test_ids_have_the_form_of_the_family_and_depend_on_nothing_else(key: str, index: int) -> None:
    forms = {"mistral": r"[a-zA-Z0-9]{9}", "mistral_args": r"[a-zA-Z0-9]{9}", "kimi_k2": rf"functions\.f_1:{index + 2}"}
    for name, family in FAMILIES.items():
        made = call_ids(family, key, num_before=2)(index, "f_1")
        assert re.fullmatch(forms.get(name, r"call_[a-zA-Z0-9]{24}"), made)
        assert made == call_ids(family, key, num_before=2)(index, "f_1")


def test_ids_of_calls_and_of_answers_differ() -> None:
    for family in FAMILIES.values():
        keys = ("a", "b") if family.call_id != "numbered" else ("a",)
        made = [call_ids(family, key)(index, "f") for key in keys for index in range(2000)]
        assert len(set(made)) == len(made)
