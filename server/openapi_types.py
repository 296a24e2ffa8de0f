"""Types that exist only to be described: bodies that the server decodes in several steps, as one struct each.

They are put together from the structs that parse requests and write answers, so that a field stands in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import UNSET, Meta

from .answer_objects import Answer, ChatChoice, ChatChunkChoice, CompletionChoice
from .chat_messages import MessageFields
from .chat_request import ChatFields
from .completion_request import CompletionFields
from .format_fields import FormatFields, ResponseFormat, StructuredOutputs
from .request_fields import SharedFields
from .sampling_fields import SamplingFields
from .session_request import InputFields
from .structural_tags import StructuralTag, Structure
from .tokenize_request import PROMPT_FIELDS, TokenizeFields
from .tool_fields import ChosenFunction, FunctionTool, ToolChoice, ToolFields, ToolObject
from .unsupported_fields import NO_EFFECT, UNSUPPORTED, Field

Messages = Annotated[list[MessageFields], Meta(min_length=1)]
Text = Annotated[str, Meta(min_length=1)]
TokenIds = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]
Texts = Annotated[list[Text], Meta(min_length=1)]
Prompts = Annotated[list[TokenIds], Meta(min_length=1)]
PromptOrPrompts = Annotated[
    Any, Meta(extra_json_schema={"anyOf": [msgspec.json.schema(kind) for kind in (Text, TokenIds, Texts, Prompts)]})
]
"""msgspec has no union of lists."""
_FieldSpec = tuple[str, object] | tuple[str, object, object]


def merged_type(
    name: str, documentation: str, structs: Iterable[type[msgspec.Struct]], types: Mapping[str, object]
) -> type[msgspec.Struct]:
    """All fields of `structs`; those in `types` have that type, for one that is decoded later has none of its own."""
    fields: dict[str, _FieldSpec] = {}
    for field in (field for struct in structs for field in msgspec.structs.fields(struct)):
        type_ = types.get(field.name, field.type)
        fields[field.name] = (field.encode_name, type_) if field.required else (field.encode_name, type_, UNSET)
    for name_, type_ in types.items():
        fields.setdefault(name_, (name_, type_, UNSET))
    return msgspec.defstruct(name, list(fields.values()), kw_only=True, namespace={"__doc__": documentation})


def _or_null(type_: object) -> object:
    return Union[type_, None]  # noqa: UP007  (of a type that is made here)


def _list_of(type_: object) -> object:
    return list[type_]  # type: ignore[valid-type]


def accepted_types(fields: Mapping[str, Field[object]], idle: Iterable[str]) -> dict[str, object]:
    """Types of fields that are not acted on: of `fields` the values that are accepted, of `idle` ones any value."""
    types: dict[str, object] = dict.fromkeys(sorted(idle), Any)
    for name, field in fields.items():
        neutral = [msgspec.to_builtins(value) for value in field.neutral]
        types[name] = Annotated[Any, Meta(title=name, extra_json_schema={"enum": neutral})]
    return types


def _generating(
    name: str, documentation: str, own: tuple[type[msgspec.Struct], ...], types: dict[str, object]
) -> type[msgspec.Struct]:
    """A generating request: its fields that are acted on, and those that are accepted."""
    structs: list[type[msgspec.Struct]] = [SharedFields, SamplingFields, FormatFields, *own]
    acted_on = {field for struct in structs for field in struct.__struct_fields__}
    others = accepted_types(UNSUPPORTED, NO_EFFECT)
    return merged_type(
        name,
        documentation,
        structs,
        {**_FORMATS, **types, **{key: value for key, value in others.items() if key not in acted_on}},
    )


LogitBias = dict[str, float] | None
"""Token id, as JSON writes names, -> bias."""
TemplateVariables = dict[str, Any] | None
Documents = list[dict[str, Any]] | None
JsonSchema = dict[str, Any] | bool | str | None
"""A schema, or a string that holds the JSON text of one."""
_TAGS = merged_type(
    "StructuralTag",
    "Pieces with free text around them.",
    [StructuralTag],
    {"format": None, "structures": list[Structure]},
)
_FORMATS: dict[str, object] = {
    "response_format": _or_null(
        merged_type("ResponseFormat", "What the answer has to look like.", [ResponseFormat], {"schema": JsonSchema})
    ),
    "structured_outputs": _or_null(
        merged_type(
            "StructuredOutputs", "Exactly one kind.", [StructuredOutputs], {"json": JsonSchema, "structural_tag": Any}
        )
    ),
    "guided_json": JsonSchema,
    "json_schema": JsonSchema,
    "structural_tag": _or_null(_TAGS),
}
_FUNCTION = merged_type("FunctionTool", "What may be called.", [FunctionTool], {"parameters": dict[str, Any] | None})
_TOOL = merged_type("ToolObject", "A tool.", [ToolObject], {"function": _FUNCTION})
_TOOLS: dict[str, object] = {
    "tools": _or_null(_list_of(_TOOL)),
    "functions": _or_null(_list_of(_FUNCTION)),
    "tool_choice": Literal["none", "auto", "required"] | ToolChoice | None,
    "function_call": Literal["none", "auto"] | ChosenFunction | None,
}

ChatCompletionRequest = _generating(
    "ChatCompletionRequest",
    "Messages to answer.",
    (ChatFields, ToolFields),
    {
        **_TOOLS,
        "messages": Messages,
        "logit_bias": LogitBias,
        "chat_template_kwargs": TemplateVariables,
        "documents": Documents,
    },
)
CompletionRequest = _generating(
    "CompletionRequest",
    "A prompt to continue.",
    (CompletionFields,),
    {"prompt": PromptOrPrompts, "logit_bias": LogitBias},
)
SessionInputRequest = merged_type(
    "SessionInputRequest",
    "More input for a streaming session.",
    [InputFields],
    {
        "prompt": Annotated[
            Any, Meta(extra_json_schema={"anyOf": [msgspec.json.schema(kind) for kind in (Text, TokenIds)]})
        ]
    },
)
TokenizeRequest = merged_type(
    "TokenizeRequest",
    "A text, or messages for the model's chat template.",
    [TokenizeFields, ToolFields],
    {
        **_TOOLS,
        "prompt": str | None,
        "messages": Messages | None,
        "chat_template_kwargs": TemplateVariables,
        "documents": Documents,
        **accepted_types({name: UNSUPPORTED[name] for name in PROMPT_FIELDS & UNSUPPORTED.keys()}, ()),
    },
)
ChatCompletion = merged_type("ChatCompletion", "A whole answer.", [Answer], {"choices": list[ChatChoice]})
ChatCompletionChunk = merged_type(
    "ChatCompletionChunk", "One event of a stream.", [Answer], {"choices": list[ChatChunkChoice]}
)
Completion = merged_type(
    "Completion", "A whole answer, or one event of a stream.", [Answer], {"choices": list[CompletionChoice]}
)
