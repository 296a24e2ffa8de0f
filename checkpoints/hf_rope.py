"""The rotary embedding that a config.json asks for, in the spelling of transformers 5 or of the versions before it."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import CorruptCheckpoint, UnsupportedModel
from .hf_config import Gemma3Config, LlamaConfig, RopeParameters
from .rope_scaling import Factors, are_sane, linear_factors, llama3_factors, yarn_factors, yarn_magnitude

_DEFAULT_THETA = 10_000.0
_GEMMA3_WIDE_THETA = 1_000_000.0


class Rope(NamedTuple):
    """How fast the pairs of a head turn."""

    theta: float
    factors: Factors = ()
    magnitude: float = 1.0


def read_rope(config: LlamaConfig, head_dim: int, where: str) -> Rope:
    """One for all layers. Raises UnsupportedModel for a kind that is not known, by name, and CorruptCheckpoint."""
    rope = config.rope_scaling or config.rope_parameters or RopeParameters()
    if rope.full_attention is not None or rope.sliding_attention is not None:
        raise UnsupportedModel(
            f"{where}: rope_parameters that differ by kind of layer are not supported in this family"
        )
    stated = (rope, config.rope_parameters, config.rope_scaling)
    theta = next((each.rope_theta for each in stated if each and each.rope_theta is not None), config.rope_theta)
    return _scaled(config, rope, _DEFAULT_THETA if theta is None else theta, head_dim, where)


def read_gemma3_ropes(config: Gemma3Config, head_dim: int, where: str) -> tuple[Rope, float]:
    """Of layers that see everything, and the theta of those with a window, which are never scaled."""
    given = config.rope_parameters or RopeParameters()
    if given.rope_theta is not None or given.kind != "default":
        raise UnsupportedModel(
            f"{where}: rope_parameters must name full_attention and sliding_attention in a Gemma 3 model",
            advice="write them as rope_theta, rope_local_base_freq and rope_scaling, or by kind of layer",
        )
    wide = config.rope_scaling or given.full_attention or RopeParameters()
    wide_theta = next(
        (each.rope_theta for each in (wide, given.full_attention) if each and each.rope_theta is not None),
        config.rope_theta,
    )
    narrow = given.sliding_attention or RopeParameters()
    if narrow.kind != "default":
        raise UnsupportedModel(
            f"{where}: rope_parameters of type {narrow.kind!r} in layers with a window are not supported"
        )
    _refuse_partial(narrow.partial_rotary_factor, where)
    local_theta = config.rope_local_base_freq if narrow.rope_theta is None else narrow.rope_theta
    rope = _scaled(config, wide, _GEMMA3_WIDE_THETA if wide_theta is None else wide_theta, head_dim, where)
    return rope, _DEFAULT_THETA if local_theta is None else local_theta


def _scaled(config: LlamaConfig, rope: RopeParameters, theta: float, head_dim: int, where: str) -> Rope:
    for share in (config.partial_rotary_factor, rope.partial_rotary_factor):
        _refuse_partial(share, where)
    if not 0 < theta < float("inf"):
        raise CorruptCheckpoint(f"{where}: rope_theta is {theta}, it must be positive")
    original = config.original_max_position_embeddings or rope.original_max_position_embeddings
    original = original or config.max_position_embeddings
    try:
        match rope.kind:
            case "default":
                return Rope(theta)
            case "linear":
                scaled = Rope(theta, linear_factors(head_dim, _needed(rope.factor, "factor", where)))
            case "llama3":
                scaled = Rope(
                    theta,
                    llama3_factors(
                        head_dim,
                        theta,
                        factor=_needed(rope.factor, "factor", where),
                        low_freq_factor=_needed(rope.low_freq_factor, "low_freq_factor", where),
                        high_freq_factor=_needed(rope.high_freq_factor, "high_freq_factor", where),
                        original_max_position=original,
                    ),
                )
            case "yarn":
                scaled = _yarn(config, rope, theta, head_dim, original)
            case kind:
                raise UnsupportedModel(
                    f"{where}: rope_scaling of type {kind!r} is not supported",
                    advice="default, linear, llama3 and yarn are",
                )
    except (ArithmeticError, ValueError):  # division by zero, logarithm of nothing, overflow
        scaled = Rope(theta, (float("inf"),))
    if not are_sane((*scaled.factors, scaled.magnitude)):
        raise CorruptCheckpoint(f"{where}: the numbers of rope_scaling ({rope.kind}) give no rotary embedding")
    return scaled


def _yarn(config: LlamaConfig, rope: RopeParameters, theta: float, head_dim: int, original: int) -> Rope:
    factor = config.max_position_embeddings / original if rope.factor is None else rope.factor
    factors = yarn_factors(
        head_dim,
        theta,
        factor=factor,
        beta_fast=rope.beta_fast or 32,
        beta_slow=rope.beta_slow or 1,
        original_max_position=original,
        rounds_bounds=rope.truncate,
    )
    if rope.attention_factor is not None:
        return Rope(theta, factors, rope.attention_factor)
    if rope.mscale and rope.mscale_all_dim:
        magnitudes = [1 + mscale * (yarn_magnitude(factor) - 1) for mscale in (rope.mscale, rope.mscale_all_dim)]
        return Rope(theta, factors, magnitudes[0] / magnitudes[1])
    return Rope(theta, factors, yarn_magnitude(factor))


def _needed(value: float | None, name: str, where: str) -> float:
    if value is None:
        raise CorruptCheckpoint(f"{where}: rope_scaling has no {name}")
    return value


def _refuse_partial(share: float | None, where: str) -> None:
    if share not in (None, 1.0):
        raise UnsupportedModel(f"{where}: partial_rotary_factor {share} is not supported", advice="it must be 1")
