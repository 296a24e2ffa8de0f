"""Statistics for samples of tokens, in the standard library: G-tests with p-values, and the law that filters make.

Source of the G-test: Sokal and Rohlf, Biometry; of the incomplete gamma function: series and continued fraction as in
Abramowitz and Stegun 6.5.29 and 6.5.31.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

ALPHA = 1e-4
"""Of one claim; a file with several divides it by their number."""
MIN_EXPECTED = 5.0
"""Cells with a lower expectation are pooled."""


def upper_gamma(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x)."""
    if x <= 0:
        return 1.0
    scale = math.exp(-x + a * math.log(x) - math.lgamma(a))
    if x < a + 1:
        term = total = 1.0 / a
        n = a
        while abs(term) > abs(total) * 1e-15:
            n += 1
            term *= x / n
            total += term
        return max(0.0, 1.0 - total * scale)
    b, c = x + 1 - a, 1e300
    d = result = 1.0 / b
    for i in range(1, 10_000):
        b += 2
        d = 1 / (b - i * (i - a) * d)
        c = b - i * (i - a) / c
        result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return result * scale


def g_test(counts: Mapping[int, int], law: Mapping[int, float]) -> float:
    """The p-value of `counts` under `law`. A count where the law has no probability is a failure at once: 0."""
    if any(count and not law.get(token) for token, count in counts.items()):
        return 0.0
    total = sum(counts.values())
    cells: list[tuple[int, float]] = []
    rest_count, rest = 0, 0.0
    for token, probability in sorted(law.items(), key=lambda item: -item[1]):
        if probability * total >= MIN_EXPECTED:
            cells.append((counts.get(token, 0), probability))
        else:
            rest_count, rest = rest_count + counts.get(token, 0), rest + probability
    if rest * total >= MIN_EXPECTED:
        cells.append((rest_count, rest))
    elif rest:
        count, probability = cells.pop()
        cells.append((count + rest_count, probability + rest))
    g = 2 * sum(count * math.log(count / (total * probability)) for count, probability in cells if count)
    return upper_gamma(max(1, len(cells) - 1) / 2, max(g, 0.0) / 2)


def two_sample_g(a: Mapping[int, int], b: Mapping[int, int], min_total: int = 10) -> float:
    """The p-value of two sets of counts having one law."""
    sizes = sum(a.values()), sum(b.values())
    cells, rest = [], (0, 0)
    for token in {*a, *b}:
        x, y = a.get(token, 0), b.get(token, 0)
        if x + y >= min_total:
            cells.append((x, y))
        else:
            rest = rest[0] + x, rest[1] + y
    cells += [rest] if sum(rest) else []
    g = 0.0
    for cell in cells:
        for count, size in zip(cell, sizes, strict=True):
            g += 2 * count * math.log(count * sum(sizes) / (sum(cell) * size)) if count else 0.0
    return upper_gamma(max(1, len(cells) - 1) / 2, max(g, 0.0) / 2)


def filtered_law(
    logits: Mapping[int, float], temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> dict[int, float]:
    """Token -> probability after temperature, min_p, top_k and top_p, one after the other; 0 for what they cut."""
    highest = max(logits.values())
    weights = {token: math.exp((value - highest) / temperature) for token, value in logits.items()}
    kept = [token for token in sorted(weights, key=lambda token: -weights[token]) if weights[token] >= min_p]
    kept = kept[:top_k] if top_k else kept
    if top_p < 1:
        total, reached, nucleus = sum(weights[token] for token in kept), 0.0, []
        for token in kept:
            nucleus.append(token)
            reached += weights[token] / total
            if reached >= top_p:
                break
        kept = nucleus
    total = sum(weights[token] for token in kept)
    return {token: weights[token] / total if token in kept else 0.0 for token in weights}


def holds(p_value: Callable[[int, int], float], num_claims: int, num_samples: int = 5000) -> bool:
    """Whether p_value(first seed, number of samples) is no alarm; an alarm is looked at once more with four times the
    samples and fresh seeds, so a false one is rarer than 1 in a million and a true one clearer."""
    alpha = ALPHA / num_claims
    return p_value(0, num_samples) > alpha or p_value(10**9, 4 * num_samples) > alpha
