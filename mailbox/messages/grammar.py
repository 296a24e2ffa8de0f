"""Messages to and from the grammar actor, and what they are about: the form that an answer has to have.

| message       | sender    | receiver  | transport | bound               | when full                        | when the peer dies |
|---------------|-----------|-----------|-----------|---------------------|----------------------------------|--------------------|
| Compile       | tokenizer | grammar   | mailbox   | one a request       | kept and sent when there is room | sent again         |
| Release       | tokenizer | grammar   | mailbox   | one a request       | kept and sent when there is room | forgotten          |
| Advance       | scheduler | grammar   | mailbox   | one a step          | later steps merge into it        | rows are replayed  |
| GrammarReady  | grammar   | scheduler | mailbox   | one a `Compile`     | kept and sent when there is room | compiled again     |
| GrammarFailed | grammar   | scheduler | mailbox   | one a `Compile`     | kept and sent when there is room | compiled again     |
| MatcherFailed | grammar   | scheduler | mailbox   | one a run           | kept and sent when there is room | found again        |

The masks themselves go to the workers through shared memory (`shm_queue.MaskRegion`).
"""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from .structures import Element


class JsonFormat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=0):
    """A JSON value that the schema accepts. `schema` is JSON text: an object or a truth value."""

    schema: str


class RegexFormat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=1):
    """The whole answer matches the regular expression."""

    pattern: str


class ChoiceFormat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=2):
    """The answer is one of these texts."""

    choices: tuple[str, ...]


class GrammarFormat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=3):
    """The answer is a sentence of a context-free grammar, in Lark's notation or in EBNF (`root ::= ...`)."""

    grammar: str


class Tag(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A piece of an answer: `begin`, a body, `end`."""

    begin: str
    schema: str
    """Of the body: JSON text. With a `style` other than `json` that of an object."""
    end: str
    style: Literal["json", "qwen_xml", "glm_xml"] = "json"
    """How the body is written: as JSON; as `<parameter=name>\\nvalue\\n</parameter>` for each property; as
    `<arg_key>name</arg_key>\\n<arg_value>value</arg_value>` for each. Values of type string stand there as they are,
    all others as JSON."""


class TagsFormat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=4):
    """Tagged pieces, such as tool calls: `prefix`, pieces with `separator` between, `suffix`.

    With `triggers` free text may stand around the pieces: where one of these texts comes up a piece has begun (each
    trigger is a beginning of some tag's `begin`), or the `prefix` if there is one. Without, there is nothing else.
    """

    tags: tuple[Tag, ...]
    triggers: tuple[str, ...] = ()
    prefix: str = ""
    separator: str = ""
    suffix: str = ""
    at_least_one: bool = False
    at_most_one: bool = False


class StructureFormat(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=6):
    """The answer is built of parts."""

    root: Element


OneFormat = JsonFormat | RegexFormat | ChoiceFormat | GrammarFormat | TagsFormat | StructureFormat


class ContentOrCalls(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=5):
    """The answer is either content or tool calls, and the model chooses. It is calls if it begins with `mark`: no
    content may."""

    content: OneFormat
    calls: TagsFormat
    mark: str
    content_begin: str = ""
    """Markup before the content."""


OutputFormat = OneFormat | ContentOrCalls


class ReasoningGate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The grammar holds behind the reasoning. `is_open`: the prompt has begun it, so all is free until `end`. Else the
    answer either begins with `begin` and is free until `end`, or the grammar holds from its first token."""

    begin: str
    end: str
    is_open: bool


class Constraint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a matcher is made of."""

    format: OutputFormat
    reasoning: ReasoningGate | None = None

    def key(self) -> str:
        """The same for equal constraints: 32 hexadecimal digits."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).hexdigest()[:32]


class Compile(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=52):
    """A request needs the grammar; answered with `GrammarReady` or `GrammarFailed`, to the scheduler."""

    grammar_key: str
    constraint: Constraint
    tokenizer: str
    """Who says so; if it dies its requests come again."""
    request_id: str = ""


class Release(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=53):
    """A request that sent `Compile` has ended: what is compiled may be forgotten."""

    grammar_key: str
    tokenizer: str


class Advance(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=54):
    """What became known of constrained rows since the last one, as parallel lists; `ended` comes first.

    Of each row the matcher takes the tokens, and the mask of the position behind them is wanted.
    """

    epoch: int
    rows: list[int]
    runs: list[int]
    positions: list[int]
    """Absolute, prompt included: of the first of `token_ids`, or of the token that comes next if there are none."""
    token_ids: list[list[int]]
    """Of a run that is new: all of its output so far."""
    grammar_keys: dict[int, str] = {}
    """Of runs that are new, by run."""
    ended: list[int] = []
    """Runs that are over."""
    drafts: dict[int, list[int]] = {}
    """By run: what the worker guesses to come behind `token_ids`. As far as the grammar allows it masks are wanted for
    the positions behind these guesses, too, as if they were the answer's."""


class GrammarReady(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=50):
    """Requests with this `grammar_key` may run."""

    grammar_key: str


class GrammarFailed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=51):
    """Requests with this `grammar_key` end with the sentence."""

    grammar_key: str
    message: str
    status: int = 400
    """500: the grammar is not to blame, and is tried again for the next request."""
    request_ids: list[str] = []
    """With 500: those that end; whoever comes later gets an answer of its own."""


class MatcherFailed(msgspec.Struct, frozen=True, array_like=True, gc=False, tag=55):
    """The request of this run cannot go on under its grammar; it ends."""

    epoch: int
    run: int
    message: str
    status: int = 500
    """400: the grammar is to blame, which became too much work to follow, or leads to where nothing may follow."""


ToGrammar = Compile | Release | Advance
GrammarToScheduler = GrammarReady | GrammarFailed | MatcherFailed
