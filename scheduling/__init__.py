"""The scheduler as a pure function over requests and blocks (floor 3; no torch, no clock, no randomness)."""
