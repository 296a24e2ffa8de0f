"""Which parsers an engine has: those that the topology names, else those that the chat template speaks of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec
import pytest

from callboard.actors.answer_parsers import resolve_parsers
from callboard.checkpoints import Checkpoint
from callboard.errors import ConfigError
from callboard.text.reasoning import STYLES
from callboard.text.tool_calls import FAMILIES
from callboard.topology import Topology, topology_from
from callboard.topology.schema import ModelSection

QWEN = "{% if tools %}<tools></tools><tool_call>{% endif %}{{ '<think>' }}{{ '</think>' }}"
PLAIN = "{{ messages[0].content }}"


def checkpoint(tmp_path: Path, template: str | None) -> Checkpoint:
    config = {} if template is None else {"chat_template": template}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return Checkpoint("m", "safetensors", str(tmp_path), "m")


def parsers(topology: Topology, where: Checkpoint) -> tuple[str, str]:
    model = resolve_parsers(topology, where).model
    return model.tool_call_parser, model.reasoning_parser


def test_the_topology_allows_what_there_is() -> None:
    hints = get_type_hints(ModelSection)
    assert set(get_args(hints["tool_call_parser"])) == {"auto", "none", *FAMILIES}
    assert set(get_args(hints["reasoning_parser"])) == {"auto", "none", *STYLES}


@pytest.mark.parametrize(
    ("template", "expected"), [(QWEN, ("hermes", "think")), (PLAIN, ("auto", "none")), (None, ("auto", "none"))]
)
def test_the_template_tells(tmp_path: Path, template: str | None, expected: tuple[str, str]) -> None:
    assert parsers(topology_from("m", []), checkpoint(tmp_path, template)) == expected


def test_a_named_parser_stays_and_a_template_of_the_operator_counts(tmp_path: Path) -> None:
    where = checkpoint(tmp_path, QWEN)
    named = topology_from("m", ["model.tool_call_parser=llama3", "model.reasoning_parser=none"])
    assert parsers(named, where) == ("llama3", "none")
    assert parsers(topology_from("m", ["model.tool_call_parser=none"]), where) == ("none", "think")
    (tmp_path / "own.jinja").write_text(PLAIN)
    own = topology_from("m", [f"model.chat_template={tmp_path / 'own.jinja'}"])
    assert parsers(own, where) == ("auto", "none")
    model = msgspec.structs.replace(own.model, chat_template=str(tmp_path / "nowhere"))
    assert parsers(msgspec.structs.replace(own, model=model), where) == ("auto", "none")


def test_a_parser_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"tool_call_parser.*nonsense"):
        topology_from("m", ["model.tool_call_parser=nonsense"])
