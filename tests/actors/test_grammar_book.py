"""The book of compiled grammars beside a brute-force twin that searches lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.grammar_book import GrammarBook

MAX_UNUSED = 3
SIZES = {"a": 1, "b": 2, "c": 3, "d": 5, "e": 9}
MAX_BYTES = 7
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
TOKENIZERS = st.sampled_from(["t.0", "t.1"])
Move = tuple[str, str, str]


class Twin:
    """Keys that are settled, least recently unused first among those without users; claims as a list."""

    def __init__(self) -> None:
        self.settled: list[str] = []
        self.claims: list[tuple[str, str]] = []

    def forget(self) -> None:
        unused = [key for key in self.settled if all(key != of for of, _ in self.claims)]
        while len(unused) > MAX_UNUSED or sum(SIZES[key] for key in unused) > MAX_BYTES:
            self.settled.remove(unused.pop(0))

    def end(self, claims: list[tuple[str, str]]) -> None:
        for claim in claims:
            self.claims.remove(claim)
        for key in dict.fromkeys(key for key, _ in claims):
            if all(key != of for of, _ in self.claims) and key in self.settled:
                self.settled.remove(key)
                self.settled.append(key)
                self.forget()


@given(moves=st.lists(st.tuples(st.sampled_from(["use", "settle", "release", "lose"]), KEYS, TOKENIZERS), max_size=60))
def test_the_book_keeps_what_is_used_and_what_was_used_last(moves: list[Move]) -> None:
    book, twin = GrammarBook(MAX_UNUSED, MAX_BYTES), Twin()
    for what, key, tokenizer in moves:
        if what == "use":
            book.use(key, tokenizer)
            twin.claims.append((key, tokenizer))
        elif what == "settle" and key not in twin.settled:
            book.settle(key, f"no {key}", SIZES[key])
            twin.settled.append(key)
            twin.forget()
        elif what == "release":
            book.release(key, tokenizer)
            twin.end([(key, tokenizer)] if (key, tokenizer) in twin.claims else [])
        elif what == "lose":
            book.lose_tokenizer(tokenizer)
            keys = list(dict.fromkeys(of for of, _ in twin.claims))
            for lost in keys:
                twin.end([claim for claim in twin.claims if claim == (lost, tokenizer)])
        for of in "abcde":
            assert book.find(of) == (f"no {of}" if of in twin.settled else None), (what, key, tokenizer)
