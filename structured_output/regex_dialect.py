"""Regular expressions of clients, rewritten for the engine that the masks are made with (Rust's syntax).

Clients write JavaScript's dialect (JSON Schema asks for it) or Python's, and check with either. Where these two or
Rust's differ in what an expression matches, what is written here matches what all agree on: a text is never let
through that one of them refuses. What is no regular language (looking around, back references) is refused by name.
"""

from __future__ import annotations

import re

from ..errors import GrammarRefused

_SPACES = r"\t\n\x0B\f\r \xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"
"""White space in JavaScript and in Python."""
_ONLY_ONES_SPACES = r"\x1C-\x1F\x85\uFEFF"
_WORD = r"0-9A-Za-z_"
_ANY_WORD = r"\p{L}\p{M}\p{N}\p{Pc}"

_NARROW = {
    "d": "[0-9]",
    "D": r"[^\p{Nd}]",
    "w": f"[{_WORD}]",
    "W": f"[^{_ANY_WORD}]",
    "s": f"[{_SPACES}]",
    "S": f"[^{_SPACES}{_ONLY_ONES_SPACES}]",
}
"""What is in the class in every dialect."""
_WIDE = {
    "d": r"[\p{Nd}]",
    "D": "[^0-9]",
    "w": f"[{_ANY_WORD}]",
    "W": f"[^{_WORD}]",
    "s": f"[{_SPACES}{_ONLY_ONES_SPACES}]",
    "S": f"[^{_SPACES}]",
}
"""What is in it in some dialect: for classes that are then negated."""
_DOT = r"[^\n\r\u2028\u2029]"
_CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_CODES = {"x": re.compile(r"[0-9A-Fa-f]{2}"), "u": re.compile(r"[0-9A-Fa-f]{4}")}
_PROPERTY = re.compile(r"\^?[A-Za-z_]+(?:=[A-Za-z_]+)?")
_COUNTS = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_OPENING = re.compile(r"\(\?(?::|P?<[A-Za-z_]\w*>)")
_META = frozenset("\\.+*?()|[]{}^$#&-~/")


def rust_regex(pattern: str) -> str:
    """`pattern` for Lark's `/.../`. Raises GrammarRefused, naming what is not supported or malformed."""
    return _Rewriter(pattern).expression()


class _Rewriter:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def expression(self) -> str:
        pieces: list[str] = []
        can_repeat = False
        while self._at < len(self._pattern):
            can_repeat = self._piece(pieces, can_repeat)
        return "".join(pieces)

    def _piece(self, pieces: list[str], can_repeat: bool) -> bool:
        """Rewrite what stands next; returns whether a quantifier may follow it."""
        character = self._pattern[self._at]
        match character:
            case "\\":
                return self._escape_outside(pieces)
            case "[":
                pieces.append(self._char_class())
            case "(":
                pieces.append(self._opening())
                return False
            case "|":
                self._at += 1
                pieces.append("|")
                return False
            case "^" | "$":
                self._at += 1
                pieces.append(character)
                return False
            case "*" | "+" | "?":
                if not can_repeat:
                    raise self._refusal(f"nothing to repeat with {character!r}")
                self._at += 1
                pieces.append(character)
                self._end_of_quantifier()
                return False
            case "{" if (counts := _COUNTS.match(self._pattern, self._at)) is not None:
                if not can_repeat:
                    raise self._refusal("nothing to repeat with '{'")
                self._at = counts.end()
                pieces.append(counts[0])
                self._end_of_quantifier()
                return False
            case "{" if self._pattern.startswith("{,", self._at):
                raise self._refusal("'{,' means a count in some dialects and a text in others")
            case ".":
                self._at += 1
                pieces.append(_DOT)
            case _:
                self._at += 1
                pieces.append(character if character == ")" else _literal(character))
        return True

    def _end_of_quantifier(self) -> None:
        """A lazy quantifier matches the same texts."""
        following = self._pattern[self._at : self._at + 1]
        if following == "?":
            self._at += 1
        elif following and following in "+*":
            raise self._refusal("a quantifier of a quantifier")

    def _opening(self) -> str:
        if not self._pattern.startswith("(?", self._at):
            self._at += 1
            return "(?:"
        known = _OPENING.match(self._pattern, self._at)
        if known is None:
            named = self._pattern[self._at : self._at + 4]
            kind = "looking ahead or behind" if re.match(r"\(\?<?[=!]", named) else "what begins with"
            raise self._refusal(f"{kind} ({named!r}) is not supported")
        self._at = known.end()
        return "(?:"

    def _escape_outside(self, pieces: list[str]) -> bool:
        letter = self._pattern[self._at + 1 : self._at + 2]
        if letter in ("A", "Z", "z"):
            self._at += 2
            pieces.append("^" if letter == "A" else "$")
            return False
        if letter in ("b", "B"):
            raise self._refusal("word boundaries (\\b, \\B) are not supported")
        item = self._escape(_NARROW)
        pieces.append(_literal(item) if len(item) == 1 else item)
        return True

    def _escape(self, classes: dict[str, str]) -> str:
        """A character, or a class in brackets."""
        letter = self._pattern[self._at + 1 : self._at + 2]
        if letter == "":
            raise self._refusal("a backslash at the end")
        start = self._at
        self._at += 2
        if letter in classes:
            return classes[letter]
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter in _CODES:
            return self._code(letter)
        if letter in ("p", "P"):
            return self._property(letter)
        if letter == "c" and re.match("[A-Za-z]", self._pattern[self._at :]):
            self._at += 1
            return chr(ord(self._pattern[self._at - 1]) % 32)
        if letter == "0" and not self._pattern[self._at : self._at + 1].isdigit():
            return "\0"
        if letter.isalnum() and letter.isascii():
            self._at = start
            kind = "back references are" if letter.isdigit() or letter == "k" else f"\\{letter} is"
            raise self._refusal(f"{kind} not supported")
        return letter

    def _code(self, letter: str) -> str:
        digits = _CODES[letter].match(self._pattern, self._at)
        if digits is None:
            raise self._refusal(f"\\{letter} wants {2 if letter == 'x' else 4} hexadecimal digits")
        self._at = digits.end()
        code = int(digits[0], 16)
        if 0xD800 <= code < 0xE000:
            raise self._refusal(f"\\{letter}{digits[0]} is half a character; write the character itself")
        return chr(code)

    def _property(self, letter: str) -> str:
        end = self._pattern.find("}", self._at)
        name = self._pattern[self._at + 1 : end]
        if not self._pattern.startswith("{", self._at) or end < 0 or not _PROPERTY.fullmatch(name):
            raise self._refusal(f"\\{letter} wants a property in braces")
        self._at = end + 1
        return f"[\\{letter}{{{name}}}]"

    def _char_class(self) -> str:
        self._at += 1
        is_negated = self._pattern.startswith("^", self._at)
        self._at += is_negated
        if self._pattern.startswith("]", self._at):
            raise self._refusal("an empty class '[]' means something else in each dialect")
        classes = _WIDE if is_negated else _NARROW
        items = []
        while not self._pattern.startswith("]", self._at):
            items.append(self._class_item(classes))
        self._at += 1
        return f"[{'^' if is_negated else ''}{''.join(items)}]"

    def _class_item(self, classes: dict[str, str]) -> str:
        first = self._class_character(classes)
        is_range = self._pattern.startswith("-", self._at) and not self._pattern.startswith("-]", self._at)
        if not is_range or len(first) > 1:
            return first if len(first) > 1 else _literal(first)
        self._at += 1
        last = self._class_character(classes)
        if len(last) > 1:
            return f"{_literal(first)}\\-{last}"
        if last < first:
            raise self._refusal(f"the range {first!r}-{last!r} is empty")
        return f"{_literal(first)}-{_literal(last)}"

    def _class_character(self, classes: dict[str, str]) -> str:
        if self._at >= len(self._pattern):
            raise self._refusal("a class '[' without its ']'")
        if self._pattern.startswith("\\b", self._at):  # a backspace, in a class
            self._at += 2
            return "\b"
        if self._pattern[self._at] == "\\":
            return self._escape(classes)
        self._at += 1
        return self._pattern[self._at - 1]

    def _refusal(self, what: str) -> GrammarRefused:
        shown = self._pattern if len(self._pattern) <= 100 else self._pattern[:100] + "..."
        return GrammarRefused(f"the regular expression {shown!r}, character {self._at}: {what}")


def _literal(character: str) -> str:
    if character in _META:
        return "\\" + character
    return character if character.isprintable() else f"\\x{{{ord(character):X}}}"
