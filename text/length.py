"""Whether a tokenizer keeps the length of a text: then it bounds the number of tokens."""

from __future__ import annotations

import msgspec
import tokenizers


class _Step(msgspec.Struct, frozen=True):
    """A normalizer or pre-tokenizer as the `tokenizers` package writes it; the fields that matter here."""

    type: str
    pattern: dict[str, str] = {}
    content: str = ""
    behavior: str = ""
    normalizers: list[_Step] = []
    pretokenizers: list[_Step] = []


def keeps_length(backend: tokenizers.Tokenizer, is_byte_level: bool) -> bool:
    """No character is dropped on the way to the tokens. False where that is not certain.

    A SentencePiece-like tokenizer may write spaces in another way, if a character without a token becomes bytes.
    """
    normalizer, pre_tokenizer = backend.normalizer, backend.pre_tokenizer
    if not _is_kept_by(normalizer):
        return False
    if is_byte_level:
        return True
    has_bytes = all(backend.token_to_id(f"<0x{byte:02X}>") is not None for byte in range(256))
    return has_bytes and getattr(backend.model, "byte_fallback", False) and _is_kept_by(pre_tokenizer)


def _is_kept_by(part: tokenizers.normalizers.Normalizer | tokenizers.pre_tokenizers.PreTokenizer | None) -> bool:
    return part is None or _is_kept_by_step(msgspec.json.decode(part.__getstate__(), type=_Step))


def _is_kept_by_step(step: _Step) -> bool:
    match step.type:
        case "Sequence":
            return all(map(_is_kept_by_step, (*step.normalizers, *step.pretokenizers)))
        case "Prepend" | "Metaspace":
            return True
        case "Replace":
            replaced = step.pattern.get("String")
            return replaced is not None and len(replaced) <= len(step.content)
        case "Split":
            return step.behavior != "Removed"
        case _:
            return False
