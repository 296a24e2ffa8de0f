"""The constants of the noise that sampling draws; `philox` has the formula and its source."""

from __future__ import annotations

M0, M1 = 0xD2511F53, 0xCD9E8D57
"""What counter words are multiplied by."""
W0, W1 = 0x9E3779B9, 0xBB67AE85
"""What key words are raised by, a round."""
ROUNDS = 10
NOISE_FLOOR = -1e30
"""In place of -inf."""

SAMPLE, ACCEPT, RESIDUAL = 0, 1, 2
"""The fourth counter word, one for each use, so that they know nothing of each other: noise that tokens are drawn with;
the number that decides about a draft; noise of the draw in place of a draft that was rejected."""
