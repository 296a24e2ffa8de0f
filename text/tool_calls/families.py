"""How each family of models writes its tool calls: a row of data each, and nothing else.

The forms are those that the families' chat templates render a call of the history in, which is what their models are
trained to write:

| family | a call |
|---|---|
| `hermes` (Hermes 2 Pro, Qwen 2.5, Qwen 3, SmolLM 2) | `<tool_call>\\n{"name": "f", "arguments": {…}}\\n</tool_call>`, or a list of them within |
| `llama3` (Llama 3.1 to 3.3) | `{"name": "f", "parameters": {…}}` as the whole answer, or after `<\\|python_tag\\|>` |
| `mistral` (tokenizers v2 to v7) | `[TOOL_CALLS][{"name": "f", "arguments": {…}, "id": "…"}, …]` |
| `mistral_args` (tokenizers from v11 on) | `[TOOL_CALLS]f[ARGS]{…}`, with `[CALL_ID]…` before `[ARGS]` in v11 |
| `deepseek_v3` (V3, R1) | `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\\n` and the arguments in a json fence |
| `deepseek_v31` (V3.1) | `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}<｜tool▁call▁end｜><｜tool▁calls▁end｜>` |
| `qwen3_coder` (Qwen 3 Coder, Qwen 3.5) | `<tool_call>\\n<function=f>\\n<parameter=k>\\nv\\n</parameter>\\n</function>\\n</tool_call>` |
| `glm` (GLM 4.5 on) | `<tool_call>f\\n<arg_key>k</arg_key>\\n<arg_value>v</arg_value>\\n</tool_call>` |
| `kimi_k2` (Kimi K2) | `<\\|tool_calls_section_begin\\|><\\|tool_call_begin\\|>functions.f:0<\\|tool_call_argument_begin\\|>{…}<\\|tool_call_end\\|>` |
| `harmony` (gpt-oss) | `<\\|channel\\|>commentary to=functions.f <\\|constrain\\|>json<\\|message\\|>{…}<\\|call\\|>` |
| `json` (any model under a grammar) | `{"name": "f", "arguments": {…}}` as the whole answer, or a list of them |

The reader is lenient where models are known to deviate: white space, a list where one call belongs and the other way
round, `parameters` for `arguments`, an outer marker that is left out.
"""  # noqa: E501

from __future__ import annotations

from .form import BodyKind, Family, Form, ParameterForm, Place, Written
from .pattern import SPACE, Ahead, Either, Element, Maybe, Pattern, Run

NAME = Run(r'[^"\\\x00-\x1f]', 128, 1, is_name=True)
"""A name within a JSON string."""
PLAIN_NAME = Run(r"[\w.\-/:]", 128, 1, is_name=True)
"""A name between markers, with the signs that tools of other protocols have in it."""


def _member(name: str) -> tuple[Element, ...]:
    return (f'"{name}"', SPACE, ":", SPACE)


_ARGUMENTS = Either((_member("arguments"), _member("parameters")))
_TYPE = Maybe((*_member("type"), '"function"', SPACE, ",", SPACE))
_NAME_FIRST: Pattern = ("{", SPACE, _TYPE, *_member("name"), '"', NAME, '"', SPACE, ",", SPACE, _ARGUMENTS)


def _object_forms(opening: Pattern, place: Place = Place.ANYWHERE) -> tuple[Form, ...]:
    """A JSON object behind `opening`: read as it comes if the name is first, else when it is whole."""
    return (
        Form((*opening, *_NAME_FIRST), BodyKind.OBJECT_REST, place),
        Form((*opening, Ahead(("{",))), BodyKind.OBJECT, place),
    )


_LIST_GOES_ON = _object_forms((",", SPACE), Place.AFTER_CALL)
_CLOSING = Run(r"[ \t\r\n}\]]", 64)
"""White space and brackets too many between a call's object and its end marker."""

_OBJECT_BEGIN = '{"name": "NAME", "arguments": '

HERMES = Family(
    name="hermes",
    markers=("<tool_call>", "</tool_call>"),
    forms=(*_object_forms(("<tool_call>", SPACE, Maybe(("[", SPACE)))), *_LIST_GOES_ON),
    tail=(Maybe((_CLOSING, "</tool_call>")),),
    stops=("</tool_call>", "<tool_call>"),
    written=Written(
        begin="<tool_call>\n" + _OBJECT_BEGIN, end="}\n</tool_call>", separator="\n", trigger="<tool_call>"
    ),
    template_signs=(("<tool_call>",),),
)

LLAMA3 = Family(
    name="llama3",
    markers=("<|python_tag|>",),
    forms=(
        *_object_forms(("<|python_tag|>", SPACE)),
        *_object_forms((), Place.AT_START),
        *_object_forms((Maybe((Either(((";",), (",",))), SPACE)),), Place.AFTER_CALL),
    ),
    tail=(),
    stops=("<|python_tag|>",),
    written=Written(
        begin='{"name": "NAME", "parameters": ',
        end="}",
        separator="; ",
        trigger='{"name": "',
        is_trigger_at_start=True,
        mark_beside_content="<|python_tag|>",
    ),
    template_signs=(("<|python_tag|>",), ('"parameters": ', "<|start_header_id|>")),
)

JSON = Family(
    name="json",
    markers=(),
    forms=(*_object_forms((Maybe(("[", SPACE)),), Place.AT_START), *_LIST_GOES_ON),
    tail=(Maybe((SPACE, "]")),),
    stops=(),
    written=Written(
        begin=_OBJECT_BEGIN,
        end="}",
        prefix="[",
        separator=", ",
        suffix="]",
        is_one_bare=True,
        trigger="[",
        is_trigger_at_start=True,
    ),
)

_MISTRAL_FORMS = (
    *_object_forms(("[TOOL_CALLS]", SPACE, Maybe(("[", SPACE)))),
    Form(
        (
            "[TOOL_CALLS]",
            SPACE,
            PLAIN_NAME,
            SPACE,
            Maybe(("[CALL_ID]", SPACE, Run(r"[\w\-]", 64), SPACE)),
            Either((("[ARGS]",), (Ahead(("{",)),))),
        ),
        BodyKind.ARGUMENTS,
    ),
    *_LIST_GOES_ON,
)

MISTRAL = Family(
    name="mistral",
    markers=("[TOOL_CALLS]",),
    forms=_MISTRAL_FORMS,
    tail=(Maybe((SPACE, "]")),),
    stops=("[TOOL_CALLS]",),
    written=Written(
        begin=_OBJECT_BEGIN,
        end="}",
        prefix="[TOOL_CALLS][",
        separator=", ",
        suffix="]",
        trigger="[TOOL_CALLS]",
    ),
    call_id="nine",
    template_signs=(("[TOOL_CALLS]",),),
)

MISTRAL_ARGS = Family(
    name="mistral_args",
    markers=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    forms=_MISTRAL_FORMS,
    tail=MISTRAL.tail,
    stops=MISTRAL.stops,
    written=Written(begin="[TOOL_CALLS]NAME[ARGS]", end="", trigger="[TOOL_CALLS]"),
    call_id="nine",
    template_signs=(("[TOOL_CALLS]", "[ARGS]"),),
)

_DEEPSEEK_BEGIN: Pattern = (Maybe(("<｜tool▁calls▁begin｜>", SPACE)), "<｜tool▁call▁begin｜>", SPACE)
_DEEPSEEK_MARKERS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_DEEPSEEK_FORMS = (
    Form(
        (*_DEEPSEEK_BEGIN, "function<｜tool▁sep｜>", PLAIN_NAME, SPACE, "```json"),
        BodyKind.ARGUMENTS,
    ),
    Form((*_DEEPSEEK_BEGIN, PLAIN_NAME, SPACE, "<｜tool▁sep｜>"), BodyKind.ARGUMENTS),
)
_DEEPSEEK_TAIL: Pattern = (
    Maybe((SPACE, "```")),
    Maybe((SPACE, "<｜tool▁call▁end｜>")),
    Maybe((SPACE, "<｜tool▁calls▁end｜>")),
)

DEEPSEEK_V3 = Family(
    name="deepseek_v3",
    markers=_DEEPSEEK_MARKERS,
    forms=_DEEPSEEK_FORMS,
    tail=_DEEPSEEK_TAIL,
    stops=("<｜tool▁call▁end｜>", "```"),
    written=Written(
        begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n",
        end="\n```<｜tool▁call▁end｜>",
        prefix="<｜tool▁calls▁begin｜>",
        separator="\n",
        suffix="<｜tool▁calls▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
    ),
    template_signs=(("<｜tool▁sep｜>", "```json"),),
)

DEEPSEEK_V31 = Family(
    name="deepseek_v31",
    markers=_DEEPSEEK_MARKERS,
    forms=_DEEPSEEK_FORMS,
    tail=_DEEPSEEK_TAIL,
    stops=DEEPSEEK_V3.stops,
    written=Written(
        begin="<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>",
        end="<｜tool▁call▁end｜>",
        prefix="<｜tool▁calls▁begin｜>",
        suffix="<｜tool▁calls▁end｜>",
        trigger="<｜tool▁calls▁begin｜>",
    ),
    template_signs=(("<｜tool▁sep｜>",),),
)

QWEN3_CODER = Family(
    name="qwen3_coder",
    markers=("<tool_call>", "</tool_call>"),
    forms=(Form((Maybe(("<tool_call>", SPACE)), "<function=", PLAIN_NAME, SPACE, ">"), BodyKind.PARAMETERS),),
    tail=(Maybe((SPACE, "</function>")), Maybe((SPACE, "</tool_call>"))),
    stops=(),
    written=Written(
        begin="<tool_call>\n<function=NAME>\n",
        end="</function>\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
    ),
    parameters=ParameterForm(
        begin="<parameter=",
        key=Run(r"[^>]", 128, 1, is_name=True),
        after_key=(">",),
        end="</parameter>",
        call_ends=("</function>", "</tool_call>"),
        is_value_in_lines=True,
        written_key=">\n",
        written_end="\n</parameter>\n",
    ),
    template_signs=(("<function=", "<parameter="),),
)

GLM = Family(
    name="glm",
    markers=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    forms=(
        Form(
            ("<tool_call>", SPACE, PLAIN_NAME, SPACE, Ahead((Either((("<arg_key>",), ("</tool_call>",))),))),
            BodyKind.PARAMETERS,
        ),
    ),
    tail=(Maybe((SPACE, "</tool_call>")),),
    stops=(),
    written=Written(begin="<tool_call>NAME\n", end="</tool_call>", separator="\n", trigger="<tool_call>"),
    parameters=ParameterForm(
        begin="<arg_key>",
        key=Run(r"[^<]", 128, 1, is_name=True),
        after_key=("</arg_key>", SPACE, "<arg_value>"),
        end="</arg_value>",
        call_ends=("</tool_call>",),
        is_value_in_lines=False,
        written_key="</arg_key>\n<arg_value>",
        written_end="</arg_value>\n",
    ),
    template_signs=(("<arg_key>",),),
)

KIMI_K2 = Family(
    name="kimi_k2",
    markers=(
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    forms=(
        Form(
            (
                Maybe(("<|tool_calls_section_begin|>", SPACE)),
                "<|tool_call_begin|>",
                SPACE,
                Maybe(("functions.",)),
                Run(r"[\w.\-/]", 128, 1, is_name=True),
                Maybe((":", Run(r"[0-9]", 8))),
                SPACE,
                "<|tool_call_argument_begin|>",
            ),
            BodyKind.ARGUMENTS,
        ),
    ),
    tail=(Maybe((SPACE, "<|tool_call_end|>")), Maybe((SPACE, "<|tool_calls_section_end|>"))),
    stops=("<|tool_call_end|>",),
    written=Written(
        begin="<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>",
        end="<|tool_call_end|>",
        prefix="<|tool_calls_section_begin|>",
        suffix="<|tool_calls_section_end|>",
        trigger="<|tool_calls_section_begin|>",
    ),
    call_id="numbered",
    template_signs=(("<|tool_calls_section_begin|>",), ("tool_declare<|im_middle|>",)),
)

_CHANNEL = Either((("commentary",), ("analysis",)))
_RECIPIENT: Pattern = ("to=functions.", PLAIN_NAME)
_CONTENT_TYPE: Pattern = (SPACE, Maybe(("<|constrain|>",)), Run(r"[\w]", 16), SPACE, "<|message|>")

HARMONY = Family(
    name="harmony",
    markers=("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"),
    forms=(
        Form(
            (
                Maybe(("<|start|>assistant",)),
                "<|channel|>",
                _CHANNEL,
                SPACE,
                *_RECIPIENT,
                *_CONTENT_TYPE,
            ),
            BodyKind.ARGUMENTS,
        ),
        Form(
            (
                Maybe(("<|start|>assistant",)),
                " ",
                *_RECIPIENT,
                SPACE,
                "<|channel|>",
                _CHANNEL,
                *_CONTENT_TYPE,
            ),
            BodyKind.ARGUMENTS,
        ),
    ),
    tail=(Maybe((SPACE, Either((("<|call|>",), ("<|end|>",))))),),
    stops=("<|call|>", "<|end|>"),
    written=Written(
        begin="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        end="<|call|>",
        separator="<|start|>assistant",
        trigger="<|channel|>commentary to=functions.",
        prefix_after_reasoning="<|start|>assistant",
    ),
    template_signs=(("<|channel|>", "functions."),),
)

DEFAULT_FAMILY = HERMES
"""For a model whose template renders no tools."""

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        HARMONY,
        KIMI_K2,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        GLM,
        QWEN3_CODER,
        MISTRAL_ARGS,
        MISTRAL,
        LLAMA3,
        HERMES,
        JSON,
    )
}
"""By name, the most telling template signs first: several families share a marker."""


def detect_family(template: str) -> str | None:
    """The name of the first family whose signs stand in the text of a chat template; None: it renders no tool calls."""
    for family in FAMILIES.values():
        if any(all(sign in template for sign in signs) for signs in family.template_signs):
            return family.name
    return None
