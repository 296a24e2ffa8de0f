"""A model made of hashes: what comes after which tokens, and when an answer ends. It knows no scheduler."""

from __future__ import annotations

from collections.abc import Container

from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.requests import TokenLogprobs
from callboard.mailbox.messages.sampling import RepetitionDetection
from callboard.scheduling.limits import SchedulerLimits

EOS = 0
VOCAB = 9


def contents(token_ids: list[int], salt: str) -> list[int]:
    """K/V of each position."""
    state = hash(tuple(salt.encode()))
    return [state := hash((state, token_id)) for token_id in token_ids]


def next_token(token_ids: list[int], choice: int, forbidden: Container[int] = ()) -> int:
    """What the fake model samples after `token_ids`; EOS about every ninth time. Not all may be forbidden."""
    token_id = contents([*token_ids, choice], "")[-1] // 7 % VOCAB
    while token_id in forbidden:
        token_id = (token_id + 1) % VOCAB
    return token_id


def prompt_entries(token_ids: list[int], num_top: int) -> list[TokenLogprobs]:
    """Log-probabilities of each token but the first, in float32; functions of all tokens up to it."""
    entries = []
    for token_id, state in zip(token_ids[1:], contents(token_ids, "")[1:], strict=True):
        top_ids = [(state // 11 + place) % VOCAB for place in range(num_top)]
        entries.append(
            TokenLogprobs(token_id, -(state % 64) / 4, top_ids, [-top / 8 for top in top_ids], state % 5 + 1)
        )
    return entries


def repeats(output: list[int], detection: RepetitionDetection | None) -> bool:
    """Brute force: some pattern, written `min_count` times, is the output's end."""
    if detection is None:
        return False
    sizes = range(detection.min_pattern_size, detection.max_pattern_size + 1)
    patterns = [output[-size:] for size in sizes if size <= len(output)]
    return any((pattern * detection.min_count) == output[-len(pattern) * detection.min_count :] for pattern in patterns)


def true_end(admit: Admit, limits: SchedulerLimits) -> tuple[list[int], str, int | None]:
    """Output ids, finish reason and stop reason of a request, computed with no scheduler at all."""
    sampling, prompt = admit.sampling, list(admit.prompt_token_ids)
    assert sampling.max_tokens is not None
    longest = min(limits.max_model_len, limits.num_blocks * limits.block_size + 1, len(prompt) + sampling.max_tokens)
    eos = () if sampling.ignore_eos else admit.eos_token_ids
    output: list[int] = []
    while len(prompt) + len(output) < longest:
        is_early = len(output) < sampling.min_tokens
        forbidden = {*eos, *sampling.stop_token_ids} if is_early else ()
        output.append(next_token(prompt + output, admit.choice, forbidden))
        is_free = len(output) >= sampling.min_tokens
        if is_free and output[-1] in eos:
            return output, "stop", None
        if is_free and output[-1] in sampling.stop_token_ids:
            return output, "stop", output[-1]
        if len(prompt) + len(output) < longest and is_free and repeats(output, sampling.repetition_detection):
            return output, "repetition", None
    return output, "length", None


def truth(admit: Admit, limits: SchedulerLimits) -> tuple[list[int], str]:
    """Output ids and finish reason."""
    return true_end(admit, limits)[:2]
