"""The tokenizer as the rest of the engine sees it: ids to text and bytes and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import tokenizers

from ..errors import CorruptCheckpoint, EngineFailure, InvalidRequest, UnsupportedModel
from .byte_level import byte_level_bytes
from .chat_template import ChatTemplate
from .length import keeps_length
from .rust_panics import panics_as

MAX_UNUSED_IDS = 1 << 16
"""Ids without a token that a vocabulary may have; those in use have some hundreds."""


class Tokenizer:
    """A vocabulary with its rules. Immutable after construction; every method may be called from several threads.

    Ids outside of the vocabulary (a model's embedding may be padded to a round size) have no text: `b""`.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None,
        eos_token_ids: tuple[int, ...],
        chat_template: ChatTemplate | None,
        where: str,
        strings: list[str] | None = None,
    ) -> None:
        """Takes over `backend`; `where` names the files in errors. `strings`: the vocabulary in the order of ids, where
        the caller has it, added tokens included.

        Raises UnsupportedModel for a decoder other than byte-level or SentencePiece-like, CorruptCheckpoint for ids far
        beyond the number of tokens: there are tables by id.
        """
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = eos_token_ids
        self.chat_template = chat_template
        self.is_byte_level = _is_byte_level(backend, where)
        if strings is None or len(strings) != backend.get_vocab_size(with_added_tokens=True):  # some stand there twice
            strings = _strings_of(backend, where)
        tokens = self._strings = strings
        self.vocab_size = len(tokens)
        added = backend.get_added_tokens_decoder()
        # As the backend does it: a token is special by its text.
        special = {token.content for token in added.values() if token.special}
        self._special = [token in special for token in tokens]
        self._bytes = _Spelling(tokens, byte_level_bytes if self.is_byte_level else sentencepiece_bytes)
        self._longest = max(map(len, (*tokens, " ")))
        """Characters of the longest token, at least 1; a byte is a character of a byte-level token."""
        takes_space = any(token.lstrip or token.rstrip for token in added.values())
        self._keeps_length = not takes_space and keeps_length(backend, self.is_byte_level)
        letters = (i for i, token in enumerate(tokens) if token.isascii() and token.isalpha() and not self._special[i])
        self.letter_id = next(letters, None)
        """A token of letters alone, None if there is none."""

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`; texts of special tokens in it become those tokens.

        `add_special_tokens`: also add what the model wants around a raw text, such as a BOS token; False for what a
        chat template rendered. A byte for which the vocabulary has no token (some vocabularies lack bytes that valid
        UTF-8 rarely has) is left out, as the `tokenizers` package does without an unknown token.
        Raises InvalidRequest for text that is not Unicode (lone surrogates), EngineFailure if the library fails on it.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the prompt is not valid Unicode: lone surrogate at character {error.start}", param="prompt"
            ) from error
        # Of the backend's methods only those for batches let other threads run: `encode` of a text of megabytes would
        # stop the whole process for seconds.
        with panics_as(EngineFailure):
            encoding = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]
        ids: list[int] = encoding.ids
        return ids

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of `len(encode(text))` that costs nothing: as if all of it were the longest token.

        0 where a normalizer or a token that takes the space around it may shorten a text, or unknown text is one token.
        """
        return len(text) // self._longest if self._keeps_length else 0

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; what is not UTF-8 becomes U+FFFD, one for each maximal subpart."""
        if self.is_byte_level:
            return self.joined_bytes(ids, skip_special_tokens).decode("utf-8", "replace")
        kept = [token_id for token_id in ids if 0 <= token_id < self.vocab_size]
        with panics_as(EngineFailure):
            text: str = self._backend.decode(kept, skip_special_tokens=skip_special_tokens)
        return text

    def joined_bytes(self, ids: Iterable[int], skip_special_tokens: bool) -> bytes:
        """The bytes of `ids`, one token's after the other's."""
        spelling, special, num_tokens = self._bytes, self._special, self.vocab_size
        known = [token_id for token_id in ids if 0 <= token_id < num_tokens]
        if skip_special_tokens:
            known = [token_id for token_id in known if not special[token_id]]
        return b"".join([spelling[token_id] for token_id in known])

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, which may be part of a character; of a special token its text."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_text(self, token_id: int) -> str:
        """One token as text, leading space kept; bytes that are no whole character become U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def token_string(self, token_id: int) -> str:
        """One token as the vocabulary writes it (`ĠParis`, `▁Paris`, `<0xE2>`); empty for an id without a token."""
        return self._strings[token_id] if 0 <= token_id < self.vocab_size else ""

    def is_special(self, token_id: int) -> bool:
        """Whether the token is a mark (begin, end, role ...) and not text."""
        return 0 <= token_id < self.vocab_size and self._special[token_id]

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """The special tokens that are written so; a text that is no such token is passed over."""
        found = (self._backend.token_to_id(text) for text in texts)
        return frozenset(token_id for token_id in found if token_id is not None and self.is_special(token_id))

    def is_byte_piece(self, token_id: int) -> bool:
        """Whether the token is one raw byte of a SentencePiece-like vocabulary; False in a byte-level one."""
        return not self.is_byte_level and is_byte_piece(self.token_string(token_id))


def _strings_of(backend: tokenizers.Tokenizer, where: str) -> list[str]:
    """By id; empty where there is no token."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    size = 1 + max(vocabulary.values(), default=-1)
    if size > 2 * len(vocabulary) + MAX_UNUSED_IDS:
        raise CorruptCheckpoint(f"{where}: {len(vocabulary):,} tokens have ids up to {size - 1:,}")
    strings = [""] * size
    added = ((token.content, token_id) for token_id, token in backend.get_added_tokens_decoder().items())
    for token, token_id in (*vocabulary.items(), *added):
        strings[token_id] = token
    return strings


class _Spelling(dict[int, bytes]):
    """Token id -> its bytes, found when they are asked for first."""

    def __init__(self, tokens: Sequence[str], to_bytes: Callable[[str], bytes]) -> None:
        self._tokens, self._to_bytes = tokens, to_bytes

    def __missing__(self, token_id: int) -> bytes:
        data = self[token_id] = self._to_bytes(self._tokens[token_id])
        return data


def is_byte_piece(token: str) -> bool:
    """Whether the token is written as `<0xE2>`."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def sentencepiece_bytes(token: str) -> bytes:
    """The bytes of a SentencePiece-like token: `<0xE2>` is that byte, U+2581 a space."""
    if is_byte_piece(token):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace("\u2581", " ").encode()


def _is_byte_level(backend: tokenizers.Tokenizer, where: str) -> bool:
    decoder = backend.decoder
    if isinstance(decoder, tokenizers.decoders.ByteLevel):
        return True
    if isinstance(decoder, tokenizers.decoders.Sequence | tokenizers.decoders.Metaspace):
        return False
    kind = "no decoder" if decoder is None else f"the decoder {type(decoder).__name__}"
    raise UnsupportedModel(
        f"{where}: a tokenizer with {kind} is not supported", advice="supported: ByteLevel, Sequence, Metaspace"
    )
