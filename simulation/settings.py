"""A scheduler's limits from `key=value`, and several of them from `key=value,value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import msgspec

from ..errors import ConfigError
from ..scheduling.limits import SchedulerLimits
from ..topology.schema import KVCacheSection, SchedulerSection

Settings = Mapping[str, str]

_NAMES = {field.name for field in msgspec.structs.fields(SchedulerLimits)}
_DOCUMENTED = "the fields of [scheduler] and [kv_cache] in docs/topology.md, and max_model_len"


def limits_of(settings: Settings, *, num_blocks: int, max_model_len: int) -> SchedulerLimits:
    """The topology's defaults, changed by `settings`. Raises ConfigError for an unknown field or a bad value."""
    defaults: dict[str, object] = {"num_blocks": num_blocks, "max_model_len": max_model_len}
    for section in (SchedulerSection(), KVCacheSection()):
        found = msgspec.structs.asdict(section)
        defaults |= {name: found[name] for name in found.keys() & _NAMES - defaults.keys()}
    return _changed(defaults, settings)


def changed_limits(limits: SchedulerLimits, settings: Settings) -> SchedulerLimits:
    """Other limits, changed. Raises ConfigError as above."""
    return _changed(msgspec.structs.asdict(limits), settings)


def _changed(defaults: dict[str, object], settings: Settings) -> SchedulerLimits:
    for name in settings:
        if name not in _NAMES:
            raise ConfigError(f"the simulator knows no setting {name!r}", advice=f"settings are {_DOCUMENTED}")
    try:
        return msgspec.convert({**defaults, **settings}, SchedulerLimits, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigError(f"{_shown(settings)}: {error}", advice=f"settings are {_DOCUMENTED}") from error


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """`["policy=fair"]` -> {"policy": "fair"}. Raises ConfigError."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise ConfigError(f"{text!r} is no setting", advice="write KEY=VALUE")
        found[name.strip()] = value.strip()
    return found


def combinations_of(texts: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
    """Every combination of `["policy=fcfs,fair", "watermark=0,0.01"]`, with a name. Raises ConfigError."""
    choices = [
        [(name, value.strip()) for value in values.split(",") if value.strip()]
        for name, values in parse_settings(texts).items()
    ]
    return [(" ".join(f"{name}={value}" for name, value in chosen), dict(chosen)) for chosen in product(*choices)]


def _shown(settings: Settings) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items()) or "the defaults"
