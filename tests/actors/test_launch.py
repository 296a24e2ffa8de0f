"""From a topology to what the supervisor starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from callboard.actors import dtypes, launch
from callboard.errors import ConfigError, ModelNotFound
from callboard.topology import topology_from


@pytest.mark.parametrize(("has_bfloat16", "dtype"), [(True, "bfloat16"), (False, "float32")])
def test_auto_becomes_what_the_cpu_multiplies(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool, dtype: str
) -> None:
    monkeypatch.setattr(dtypes, "_cpu_has_bfloat16", lambda: has_bfloat16)
    ready = launch.prepare_launch(topology_from(str(tiny_llama_dir)))
    assert (ready.topology.model.dtype, ready.topology.model.kv_dtype) == (dtype, dtype)
    assert (ready.shape.num_layers, ready.shape.vocab_size, ready.shape.eos_token_ids) == (2, 257, (0,))
    assert 0 < ready.max_model_len <= 4096 and ready.ledger.num_blocks > 0


def test_a_dtype_that_was_named_stays(tiny_llama_dir: Path) -> None:
    ready = launch.prepare_launch(topology_from(str(tiny_llama_dir), ["model.dtype=float32"]))
    assert (ready.topology.model.dtype, ready.topology.model.kv_dtype) == ("float32", "float32")


def test_auto_is_what_a_file_is_quantized_to_where_the_cpu_has_the_instructions(
    smollm2_gguf: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dtypes, "cpu_flags", lambda: frozenset({"avx2", "fma", "f16c"}))
    model = launch.prepare_launch(topology_from(str(smollm2_gguf))).topology.model
    assert (model.dtype, model.kv_dtype) == ("int4", "bfloat16")
    monkeypatch.setattr(dtypes, "cpu_flags", frozenset)
    model = launch.prepare_launch(topology_from(str(smollm2_gguf))).topology.model
    assert (model.dtype, model.kv_dtype) == ("float32", "float32")
    log = capsys.readouterr().err
    assert "model.weights_widened stored=int4 held=float32" in log and "no AVX2" in log


def test_a_packed_dtype_that_cannot_be_computed_is_refused_with_the_reason(
    tiny_llama_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtypes, "cpu_flags", frozenset)
    with pytest.raises(ConfigError, match=r"int8 cannot be computed here: the CPU has no AVX2"):
        launch.prepare_launch(topology_from(str(tiny_llama_dir), ["model.dtype=int8"]))


def test_a_missing_model_and_a_length_it_does_not_have_are_named(tiny_llama_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        launch.prepare_launch(topology_from(str(tmp_path / "nothing")))
    with pytest.raises(ConfigError, match=r"max_model_len.*5[,_]?000"):
        launch.prepare_launch(topology_from(str(tiny_llama_dir), ["model.max_model_len=5000"]))


def test_a_loader_that_the_files_are_not_for_is_refused(tiny_llama_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r'load = "gguf", but .* is loaded as safetensors'):
        launch.prepare_launch(topology_from(str(tiny_llama_dir), ["model.load=gguf"]))
    assert launch.prepare_launch(topology_from(str(tiny_llama_dir), ["model.load=safetensors"])).checkpoint.name


@pytest.mark.parametrize(("limit", "left"), [("8000\n", 8000 - 7000 + 4000), ("max\n", None)])
def test_files_in_the_page_cache_do_not_count_as_used(tmp_path: Path, limit: str, left: int | None) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.stat").write_text("anon 2000\nfile 5000\ninactive_file 4000\n")
    assert launch._cgroup_bytes_left(tmp_path) == left


def test_without_a_control_group_there_is_no_limit(tmp_path: Path) -> None:
    assert launch._cgroup_bytes_left(tmp_path) is None
