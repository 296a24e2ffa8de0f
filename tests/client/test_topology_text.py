"""A topology written as a file is the same topology."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.client.topology_text import override_texts, toml_value, topology_text
from callboard.topology import load_topology, topology_from

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_survive(example, tmp_path):
    topology = load_topology(example)
    (tmp_path / "copy.toml").write_text(topology_text(topology))
    assert load_topology(tmp_path / "copy.toml") == topology


TOPOLOGY = topology_from("m")


@settings(max_examples=50, deadline=None, database=None)
@given(st.text(), st.floats(1e-6, 1e6), st.integers(1, 2**53))
def test_any_text_and_number_survives(text, seconds, number):
    topology = msgspec.structs.replace(
        TOPOLOGY,
        model=msgspec.structs.replace(TOPOLOGY.model, source=text.encode(errors="replace").decode()),
        supervision=msgspec.structs.replace(TOPOLOGY.supervision, step_deadline_s=seconds),
        scheduler=msgspec.structs.replace(TOPOLOGY.scheduler, max_queued_tokens=number),
    )
    assert msgspec.convert(tomllib.loads(topology_text(topology)), type(topology)) == topology


json_like = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab. ", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None, database=None)
@given(json_like)
def test_values_read_as_they_were(value):
    """tomllib is the oracle."""
    assert tomllib.loads(f"value = {toml_value(value)}") == {"value": value}


def test_overrides():
    settings = {
        "scheduler.max_num_seqs": 8,
        "kv_cache.prefix_caching": False,
        "model.served_name": "8",
        "supervision.resume_grace_s": 2.5,
        "process.worker.actors": ("worker",),
        "process.worker.restart.max": 7,
        "model.dtype": "float32",
    }
    topology = topology_from("m", override_texts(settings))
    assert (topology.scheduler.max_num_seqs, topology.kv_cache.prefix_caching) == (8, False)
    assert (topology.model.served_name, topology.model.dtype) == ("8", "float32")
    assert topology.supervision.resume_grace_s == 2.5
    assert (topology.process[1].actors, topology.process[1].restart.max) == (("worker",), 7)
    with pytest.raises(TypeError, match="object"):
        override_texts({"a.b": object()})
