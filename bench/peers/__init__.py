"""Callboard and other engines on the same machine with the same model and load, in one run; docs/peers.md."""
