"""From the name of a method and its options to a proposer."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from ..errors import ConfigError
from .ngram import NgramOptions, NgramProposer
from .proposer import Proposer
from .suffix_tree import SuffixOptions, SuffixProposer

METHODS: dict[str, type[NgramOptions | SuffixOptions]] = {"ngram": NgramOptions, "suffix": SuffixOptions}
"""Known methods, and what each may be told."""


def read_options(method: str, options: Mapping[str, object]) -> NgramOptions | SuffixOptions:
    """Raises ConfigError for an unknown method, naming the known ones, and for options that it does not have or whose
    values are not allowed."""
    known = METHODS.get(method)
    if known is None:
        raise ConfigError(f'speculative method "{method}" is not known; known are ' + ", ".join(METHODS))
    try:
        return msgspec.convert(options, known)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f'options of the speculative method "{method}": {error}',
            advice="it has " + ", ".join(field.name for field in msgspec.structs.fields(known)),
        ) from error


def make_proposer(method: str, options: Mapping[str, object], max_num_seqs: int, max_model_len: int) -> Proposer:
    """For a batch of so many rows and tokens, with its code compiled, which takes seconds where it is not on the disk.
    Raises ConfigError as `read_options` does, and where options contradict each other."""
    proposer: Proposer
    match read_options(method, options):
        case NgramOptions() as found:
            proposer = NgramProposer(found, max_num_seqs)
        case found:
            proposer = SuffixProposer(found, max_num_seqs, max_model_len)
    none = np.empty(0, np.int32)
    proposer.propose(none, np.zeros((1, 1), np.int32), np.zeros(1, np.int32), none)
    return proposer
