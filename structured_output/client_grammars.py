"""Grammars that clients write: in Lark's notation (llguidance's variant of it), or in EBNF as llama.cpp reads it.

A Lark grammar may hold JSON schemas (`%json {...}`), which are checked like any other. What would take the answer out
of the grammar's hands is refused: options of llguidance, special tokens, limits by tokens, stop texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import msgspec
from llguidance.gbnf_to_lark import gbnf_to_lark

from ..errors import GrammarRefused
from .json_text import json_rule
from .lark_text import HEADER
from .schema_check import checked_schema

_PIECES = re.compile(
    r'(?P<text>"(?:[^"\\\n]|\\.)*")'
    r"|(?P<comment>(?://|#)[^\n]*)"
    r"|(?P<regex>/(?:[^/\\\n]|\\.)+/)"
    r"|(?P<directive>%[a-z]+)"
    r"|(?P<code>.)",
    re.DOTALL,
)
_EBNF_PIECES = re.compile(
    r'(?P<text>"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\\n]|\\.)*\])|(?P<comment>#[^\n]*)|(?P<code>.)', re.DOTALL
)
_ESCAPED = re.compile(r"((?<!\\)(?:\\\\)*)\\(u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8})")
_OPTION = re.compile(r"\b(max_tokens|temperature|stop|stop_capture)\s*=")
_DIRECTIVES = ("%json", "%ignore", "%import", "%regex")


def lark_of_client(grammar: str) -> str:
    """The grammar for llguidance. Raises GrammarRefused."""
    is_ebnf = "::=" in "".join(found[0] for found in _EBNF_PIECES.finditer(grammar) if found.lastgroup == "code")
    return HEADER + (_from_ebnf(grammar) if is_ebnf else "".join(_checked(grammar)))


def _from_ebnf(grammar: str) -> str:
    try:
        converted = gbnf_to_lark(_ESCAPED.sub(_unescaped, grammar))
    except Exception as error:  # for an undefined rule the package raises a bare Exception
        raise GrammarRefused(f"the EBNF grammar cannot be read: {str(error)[:300] or type(error).__name__}") from error
    return str(converted).removeprefix("%llguidance {}\n")


def _unescaped(found: re.Match[str]) -> str:
    """`\\u00e9` as its character: the converter takes off the zeros."""
    code = int(found[2][1:], 16)
    if code < 0x80:
        return f"{found[1]}\\x{code:02X}"
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        raise GrammarRefused(f"the EBNF grammar has \\{found[2]}, which is no character")
    return found[1] + chr(code)


def _checked(grammar: str) -> Iterator[str]:
    """The pieces of a Lark grammar, its JSON schemas replaced by what they are compiled as."""
    at = 0
    code: list[str] = []
    while at < len(grammar):
        piece = _PIECES.match(grammar, at)
        assert piece is not None, "any character is a piece"
        at = piece.end()
        match piece.lastgroup:
            case "directive" if piece[0] == "%json":
                schema, at = _json_at(grammar, at)
                yield json_rule(checked_schema(schema))
                continue
            case "directive" if piece[0] not in _DIRECTIVES:
                raise GrammarRefused(f"{piece[0]} is not supported in a grammar; there are {', '.join(_DIRECTIVES)}")
            case "directive" if piece[0] == "%regex":
                schema, at = _json_at(grammar, at)
                yield f"%regex {schema}"
                continue
            case "code":
                code.append(piece[0])
                if piece[0] == "<":
                    raise GrammarRefused("special tokens (<...>) are not supported in a grammar: they are no text")
                if piece[0] == "=" and (option := _OPTION.search("".join(code[-40:]))) is not None:
                    raise GrammarRefused(f"the option {option[1]} is not supported in a grammar")
            case _:
                code.append(" ")
        yield piece[0]


def _json_at(grammar: str, at: int) -> tuple[str, int]:
    """The JSON that stands there, and where it ends."""
    start = at + len(grammar[at:]) - len(grammar[at:].lstrip())
    try:
        value, end = json.JSONDecoder().raw_decode(grammar, start)
    except (json.JSONDecodeError, RecursionError) as error:
        raise GrammarRefused(f"what follows %json or %regex in the grammar is no JSON: {error}") from error
    return msgspec.json.encode(value).decode(), end
