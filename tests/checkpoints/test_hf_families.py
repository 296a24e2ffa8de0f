"""config.json of every family: defaults and derived fields as transformers' own classes have them; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from callboard.checkpoints import SUPPORTED_ARCHITECTURES, ModelShape
from callboard.checkpoints.architectures import HUGGING_FACE_CLASSES, HUGGING_FACE_MODEL_TYPES
from callboard.checkpoints.hf_config import CONFIGS
from callboard.checkpoints.hf_shape import read_hf_config
from callboard.checkpoints.model_weights import held_weights, model_weights
from callboard.errors import CorruptCheckpoint, UnsupportedModel

CLASSES = {architecture: name for name, architecture in HUGGING_FACE_CLASSES.items()}
CONFIG_CLASSES = {
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "gemma3": "Gemma3TextConfig",
}
SIZES = {
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 40,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

# Beside SIZES, as a file may have them, spelled as by old and new versions of transformers.
WRITTEN: dict[str, list[dict[str, object]]] = {
    "llama": [
        {},
        {"rope_theta": 5e5, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 512}, "head_dim": 64},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5, "original_max_position_embeddings": 512}, "head_dim": 128},
        {"rope_theta": 5e5, "rope_scaling": LLAMA3, "head_dim": 128, "max_position_embeddings": 4096},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 1e6, "rope_scaling": YARN, "head_dim": 64},
        {"rope_scaling": {**YARN, "attention_factor": 0.5, "beta_fast": 16, "beta_slow": 2}},
        {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5, "factor": 16.0}, "head_dim": 96},
        {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ],
    "mistral": [{}, {"sliding_window": None}, {"sliding_window": 64, "head_dim": 32, "rope_theta": 1e6}],
    "qwen2": [
        {},
        {"use_sliding_window": True, "max_window_layers": 5, "sliding_window": 100},
        {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 2, "tie_word_embeddings": True},
        {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"] * 4},
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
    ],
    "qwen3": [
        {},
        {"head_dim": 64, "attention_bias": True},
        {"use_sliding_window": True, "max_window_layers": 3, "sliding_window": 9},
    ],
    "gemma3": [
        {},
        {"sliding_window": 512, "sliding_window_pattern": 3, "query_pre_attn_scalar": 168, "head_dim": 128},
        {"rope_local_base_freq": 2e4, "rope_theta": 5e5, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}},
        {
            "layer_types": ["full_attention", "sliding_attention"] * 4,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 7e3},
            },
        },
        {"tie_word_embeddings": False, "attention_bias": True, "sliding_window_pattern": 1},
    ],
}
CASES = [(architecture, index) for architecture, cases in WRITTEN.items() for index in range(len(cases))]


def read(path: Path, architecture: str, fields: dict[str, object]) -> ModelShape:
    content = {"architectures": [CLASSES[architecture]], **SIZES, **fields}
    (path / "config.json").write_text(json.dumps(content))
    return read_hf_config(str(path))


@pytest.mark.parametrize(("architecture", "index"), CASES)
def test_fields_are_those_of_transformers(tmp_path: Path, architecture: str, index: int) -> None:
    transformers = pytest.importorskip("transformers")
    fields = WRITTEN[architecture][index]
    shape = read(tmp_path, architecture, fields)
    config_class = getattr(transformers, CONFIG_CLASSES[architecture])
    config = config_class.from_dict(json.loads((tmp_path / "config.json").read_text()))
    assert shape.num_kv_heads == config.num_key_value_heads
    assert shape.head_dim == (getattr(config, "head_dim", None) or 8)
    assert shape.max_position == config.max_position_embeddings
    assert shape.rms_norm_eps == config.rms_norm_eps
    assert shape.tie_word_embeddings == config.tie_word_embeddings
    assert (shape.bos_token_id, shape.eos_token_ids) == (
        config.bos_token_id,
        () if config.eos_token_id is None else (config.eos_token_id,),
    )
    assert (shape.query_divisor or shape.head_dim) == getattr(config, "query_pre_attn_scalar", shape.head_dim)
    if layer_types := getattr(config, "layer_types", None):
        windows = tuple(config.sliding_window if kind == "sliding_attention" else None for kind in layer_types)
    else:
        windows = (getattr(config, "sliding_window", None),) * 8
    assert (shape.windows or (None,) * 8) == windows


@pytest.mark.parametrize(("architecture", "index"), CASES)
def test_frequencies_are_those_of_transformers(tmp_path: Path, architecture: str, index: int) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    from callboard.models.rotary_tables import rotary_tables

    shape = read(tmp_path, architecture, WRITTEN[architecture][index])
    config_class = getattr(transformers, CONFIG_CLASSES[architecture])
    config = config_class.from_dict(json.loads((tmp_path / "config.json").read_text()))
    module = getattr(transformers.models, architecture)
    prefix = architecture.capitalize()
    embedding = getattr(getattr(module, f"modeling_{architecture}"), f"{prefix}RotaryEmbedding")(config)
    positions = torch.tensor([[0, 1, 7, 100]])
    tables = [torch.from_numpy(table).unsqueeze(2) for table in rotary_tables(shape, 101)]
    kinds = [()] if architecture != "gemma3" else [(kind,) for kind in sorted(set(config.layer_types))]
    for kind in kinds:
        cos, sin = embedding(torch.zeros(1), positions, *kind)
        table = tables[-1] if kind == ("sliding_attention",) else tables[0]
        ours_cos, ours_sin = table[positions[0]].unbind(1)
        torch.testing.assert_close(ours_cos[:, 0], cos[0], atol=2e-5, rtol=0)
        half = shape.head_dim // 2
        torch.testing.assert_close(ours_sin[:, 0, half:], sin[0, :, half:], atol=2e-5, rtol=0)


def test_every_class_has_its_config_and_its_weights(tmp_path: Path) -> None:
    assert set(CONFIGS) == set(SUPPORTED_ARCHITECTURES) == set(HUGGING_FACE_MODEL_TYPES.values()) == set(WRITTEN)
    for architecture in SUPPORTED_ARCHITECTURES:
        assert model_weights(read(tmp_path, architecture, {}))


def test_the_model_type_names_the_family_where_no_class_does(tmp_path: Path) -> None:
    for model_type, architecture in HUGGING_FACE_MODEL_TYPES.items():
        shape = read(tmp_path, architecture, {"architectures": None, "model_type": model_type})
        assert shape == read(tmp_path, architecture, {})


def test_norms_of_heads_are_held_once_a_head(tmp_path: Path) -> None:
    shape = read(tmp_path, "qwen3", {"head_dim": 16})
    sizes = {name: size for (_, name), size in held_weights(shape).items() if ".7." in name and "norm" in name}
    assert sizes == {
        "model.layers.7.input_layernorm.weight": (64,),
        "model.layers.7.post_attention_layernorm.weight": (64,),
        "model.layers.7.self_attn.q_norm.weight": (8 * 16,),
        "model.layers.7.self_attn.k_norm.weight": (4 * 16,),
    }


def test_a_shape_travels_as_a_message(tmp_path: Path) -> None:
    shape = read(tmp_path, "gemma3", WRITTEN["gemma3"][2])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(shape), type=ModelShape) == shape


@pytest.mark.parametrize(
    ("architecture", "fields", "says"),
    [
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'.*llama3 and yarn are"),
        ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ("llama", {"partial_rotary_factor": 0.5}, r"partial_rotary_factor 0\.5"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ by kind of layer"),
        ("llama", {"sliding_window": 4096}, "sliding_window 4096"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config .*'gptq'"),
        ("mistral", {"attention_bias": True}, "attention_bias"),
        ("mistral", {"mlp_bias": True}, "mlp_bias"),
        ("mistral", {"layer_types": ["full_attention"] * 8}, "layer_types"),
        ("qwen2", {"attention_bias": True}, "attention_bias"),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 8}, "chunked_attention"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 8}, "no sliding_window is in use"),
        ("qwen3", {"hidden_act": "relu"}, "hidden_act"),
        ("gemma3", {"hidden_activation": "gelu"}, "hidden_activation"),
        ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3", {"sliding_window": None}, "no sliding_window is in use"),
        ("gemma3", {"rope_parameters": {"rope_theta": 1e4}}, "must name full_attention and sliding_attention"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "'linear' in layers with a window",
        ),
    ],
)
def test_what_is_not_supported_is_named(
    tmp_path: Path, architecture: str, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(UnsupportedModel, match=says):
        read(tmp_path, architecture, fields)


@pytest.mark.parametrize(
    ("architecture", "fields", "says"),
    [
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "no low_freq_factor"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "no factor"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "no rotary embedding"),
        ("llama", {"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "no rotary embedding"),
        ("llama", {"rope_scaling": {**YARN, "original_max_position_embeddings": -1}}, "no rotary embedding"),
        ("llama", {"rope_theta": -1.0}, "rope_theta"),
        ("mistral", {"sliding_window": 0}, "sliding window"),
        ("qwen3", {"layer_types": ["full_attention"]}, "layer_types has 1 entries for 8 layers"),
        ("gemma3", {"sliding_window_pattern": 0}, "sliding_window_pattern"),
        ("gemma3", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar"),
    ],
)
def test_what_no_model_can_have_is_corrupt(
    tmp_path: Path, architecture: str, fields: dict[str, object], says: str
) -> None:
    with pytest.raises(CorruptCheckpoint, match=says):
        read(tmp_path, architecture, fields)


def test_a_checkpoint_with_images_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Gemma3ForConditionalGeneration"]}))
    with pytest.raises(UnsupportedModel, match="takes images") as caught:
        read_hf_config(str(tmp_path))
    assert "Gemma3ForCausalLM" in str(caught.value)
