"""Methods by name."""

from __future__ import annotations

import pytest

from callboard.errors import ConfigError
from callboard.speculative.make_proposer import METHODS, make_proposer, read_options
from callboard.speculative.ngram import NgramOptions, NgramProposer
from callboard.speculative.suffix_tree import SuffixProposer


def test_each_method_makes_its_proposer():
    kinds = {method: type(make_proposer(method, {}, 2, 64)) for method in METHODS}
    assert kinds == {"ngram": NgramProposer, "suffix": SuffixProposer}


def test_options_are_read():
    assert read_options("ngram", {"max_ngram": 7}) == NgramOptions(max_ngram=7)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("eagle", {}, ['"eagle" is not known', "ngram, suffix"]),
        ("ngram", {"min_match": 3}, ['"ngram"', "min_match", "it has min_ngram, max_ngram"]),
        ("ngram", {"min_ngram": 0}, [">= 1", "$.min_ngram"]),
        ("ngram", {"min_ngram": 9, "max_ngram": 8}, ["min_ngram is 9"]),
        ("suffix", {"spec_factor": "2"}, ["$.spec_factor"]),
        ("suffix", {"min_probability": 1.5}, ["<= 1.0", "$.min_probability"]),
    ],
)
def test_what_is_refused(method, options, words):
    with pytest.raises(ConfigError) as caught:
        make_proposer(method, options, 2, 64)
    assert [word for word in words if word not in str(caught.value)] == []
