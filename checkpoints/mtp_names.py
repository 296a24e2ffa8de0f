"""Layers for several tokens ahead that stand among a model's tensors: no part of the model itself."""

from __future__ import annotations

MTP_LAYERS = "model.mtp_layers."
"""Beginning of their names."""
