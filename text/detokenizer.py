"""Text of a growing list of tokens: whole characters only, none ever taken back."""

from __future__ import annotations

import codecs
from collections.abc import Sequence, Set

from .tokenizer import Tokenizer


class Detokenizer:
    """Incremental twin of `Tokenizer.decode`: the joined results equal the decoding of all ids, however they are cut.

    Holds the state of one request. It depends on the output ids only, so a lost one is rebuilt by one `push` of the ids
    known so far, whose text is thrown away or cut. A leading space of the first token is kept if `decode` keeps it, or
    if `is_continuation`: then the ids go on from some text, and the result is what they add to its decoding.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        *,
        is_continuation: bool = False,
        kept: Set[int] = frozenset(),
    ) -> None:
        """`kept`: special tokens that are not skipped."""
        self._tokenizer = tokenizer
        self._kept = kept if skip_special_tokens else frozenset()
        """If there are any the others are skipped here."""
        skips = skip_special_tokens and not kept
        self._stream: _ByteStream | _PieceStream
        if tokenizer.is_byte_level:
            self._stream = _ByteStream(tokenizer, skips)
        else:
            self._stream = _PieceStream(tokenizer, skips, is_continuation)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; bytes of an incomplete character are kept for later."""
        if self._kept:
            is_special, kept = self._tokenizer.is_special, self._kept
            token_ids = [token_id for token_id in token_ids if token_id in kept or not is_special(token_id)]
        return self._stream.push(token_ids)

    def finish(self) -> str:
        """What is left: an incomplete character as U+FFFD. No `push` may follow."""
        return self._stream.finish()


class _ByteStream:
    """For byte-level vocabularies: an incremental UTF-8 decoder over the tokens' bytes."""

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        return self._decoder.decode(self._tokenizer.joined_bytes(token_ids, self._skip_special_tokens))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _PieceStream:
    """For SentencePiece-like vocabularies: decodes a window of tokens and gives what it adds.

    Two facts of such decoders are looked after. A space at the very beginning is stripped: so a window begins with an
    *anchor*, a token that has text of its own even then, and no later space can be taken for the first one. A run of
    byte tokens (`<0xE2>`) is decoded as a whole, and becomes U+FFFD for each byte if any of it is not UTF-8: so a run
    is kept back until a token of another kind ends it.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool, is_continuation: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        # Which text it goes on from makes no difference, so one token stands for it.
        before = tokenizer.letter_id if is_continuation else None
        self._window: list[int] = [] if before is None else [before]
        self._num_given = len(self._window)
        """Tokens of the window whose text was given."""

    def push(self, token_ids: Sequence[int]) -> str:
        tokenizer = self._tokenizer
        # Skipped tokens are not there at all: a run of bytes goes on across them.
        self._window += [
            token_id
            for token_id in token_ids
            if 0 <= token_id < tokenizer.vocab_size
            and not (self._skip_special_tokens and tokenizer.is_special(token_id))
        ]
        end = len(self._window)
        while end > self._num_given and tokenizer.is_byte_piece(self._window[end - 1]):
            end -= 1
        return self._give(end)

    def finish(self) -> str:
        return self._give(len(self._window))

    def _give(self, end: int) -> str:
        """The text of the window's tokens up to `end` that was not given yet; moves the window."""
        if end == self._num_given:
            return ""
        before = self._decode(self._window[: self._num_given])
        text = self._decode(self._window[:end])[len(before) :]
        self._num_given = end
        for index in range(end - 1, 0, -1):
            if self._is_anchor(self._window[index]):
                del self._window[:index]
                self._num_given -= index
                break
        return text

    def _is_anchor(self, token_id: int) -> bool:
        return not self._tokenizer.is_byte_piece(token_id) and self._decode([token_id]) != ""

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, self._skip_special_tokens)
