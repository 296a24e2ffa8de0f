"""Tiny random models of every family, made by transformers, which is their oracle; and an engine in this process."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from transformers import PretrainedConfig, PreTrainedModel

from callboard.checkpoints import ModelShape, read_shape, resolve_checkpoint
from callboard.execution.device.runner import DeviceRunner
from callboard.execution.draft_model import DraftModelProposer
from callboard.execution.input_batch import InputBatch
from callboard.execution.pending_step import HeldStep, PendingStep
from callboard.execution.runner import ModelRunner
from callboard.execution.token_masks import MaskSource
from callboard.execution.torch_forward import TorchForward
from callboard.mailbox.messages.admission import Admit
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import StepPlan
from callboard.models.load import load_model
from callboard.models.protocol import CausalLM
from callboard.scheduling.events import Event, WorkerAttached
from callboard.scheduling.limits import SchedulerLimits
from callboard.scheduling.scheduler import Scheduler
from callboard.speculative.acceptance import Rule
from callboard.speculative.proposer import Proposer

VOCAB_SIZE, MAX_LEN, BLOCK_SIZE = 160, 128, 4
WINDOW = 12
COMMON = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.1,
    "attn_implementation": "eager",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
GEMMA3 = {"head_dim": 24, "sliding_window": WINDOW, "query_pre_attn_scalar": 40}

CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama-rope3": (
        "Llama",
        {"rope_parameters": {**LLAMA3, "rope_theta": 1e4, "original_max_position_embeddings": 32}},
    ),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}}),
    "llama-yarn": (
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 32,
            },
            "tie_word_embeddings": True,
        },
    ),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 24, "num_key_value_heads": 1}),
    "mistral-window": ("Mistral", {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", {}),
    "qwen2-tied": (
        "Qwen2",
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
    "qwen3-biases": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "gemma3": ("Gemma3", {**GEMMA3, "sliding_window_pattern": 2}),
    "gemma3-linear": (
        "Gemma3",
        {
            **GEMMA3,
            "layer_types": ["full_attention", *["sliding_attention"] * 3],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3-gguf": (
        "Gemma3",
        {
            **GEMMA3,
            "num_hidden_layers": 7,
            "query_pre_attn_scalar": 24,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3-no-window": ("Gemma3", {**GEMMA3, "sliding_window_pattern": 1, "query_pre_attn_scalar": 24}),
}
"""Name -> (prefix of the classes, settings)."""


class Loaded(NamedTuple):
    """The same weights in transformers and here."""

    oracle: PreTrainedModel
    shape: ModelShape
    model: CausalLM


def make_oracle(name: str, **changes: object) -> PreTrainedModel:
    """Random weights so large that a wrong order, norm, angle or window moves the logits by far more than rounding.

    `changes`: settings in place of those of the case.
    """
    prefix, settings = CASES[name]
    config_class = getattr(transformers, {"Gemma3": "Gemma3Text"}.get(prefix, prefix) + "Config")
    config: PretrainedConfig = config_class(**{**COMMON, **settings, **changes})
    torch.manual_seed(sum(name.encode()))
    oracle: PreTrainedModel = getattr(transformers, prefix + "ForCausalLM")(config).eval().requires_grad_(False)
    for parameter_name, parameter in oracle.named_parameters():
        if "norm" in parameter_name:
            parameter.add_(0.3 * torch.randn(parameter.shape))
        elif parameter_name.endswith("bias"):
            parameter.copy_(0.5 * torch.randn(parameter.shape))
    return oracle


def load(oracle: PreTrainedModel, path: Path, dtype: torch.dtype = torch.float32, **save: object) -> Loaded:
    """Saved by transformers into `path`, read from there."""
    oracle.save_pretrained(path, **save)
    checkpoint = resolve_checkpoint(str(path))
    shape = read_shape(checkpoint)
    return Loaded(oracle, shape, load_model(checkpoint, shape, dtype, torch.device("cpu"), MAX_LEN))


def make_prompt(seed: int, length: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(3, VOCAB_SIZE, length)]


def oracle_logits(oracle: PreTrainedModel, token_ids: Sequence[int]) -> torch.Tensor:
    """float32 [len(token_ids), vocab_size]"""
    logits: torch.Tensor = oracle(torch.tensor([token_ids]), use_cache=False).logits[0].float()
    return logits


def is_greedy(oracle: PreTrainedModel, prompt: Sequence[int], tokens: Sequence[int]) -> bool:
    """Whether the oracle, given prompt and tokens as a whole, finds each token the likeliest behind those before it:
    token by token it would then have generated the same."""
    logits = oracle_logits(oracle, [*prompt, *tokens[:-1]])
    return logits[len(prompt) - 1 :].argmax(-1).tolist() == list(tokens)


@runtime_checkable
class MakeProposer(Protocol):
    """For a batch, and a pool of so many blocks; draws: told what drafts are drawn from."""

    def __call__(self, batch: InputBatch, num_blocks: int, *, draws: bool) -> Proposer: ...


class Engine:
    """A scheduler and a runner; plans are made as far ahead as the pipeline's depth allows."""

    def __init__(
        self,
        model: CausalLM,
        proposer: Proposer | MakeProposer | None = None,
        *,
        draft_model: CausalLM | None = None,
        acceptance: Rule = "coupled",
        masks: MaskSource | None = None,
        **limits: object,
    ) -> None:
        settings = {
            "max_num_seqs": 8,
            "max_num_batched_tokens": 16,
            "long_prefill_token_threshold": 0,
            "pipeline_depth": 1,
            "watermark": 0.0,
            "max_queued_requests": 100,
            "max_queued_tokens": 100_000,
            "num_blocks": 128,
            "block_size": BLOCK_SIZE,
            "prefix_caching": False,
            "max_model_len": MAX_LEN,
        } | limits
        self.scheduler = Scheduler(SchedulerLimits(**settings))  # type: ignore[arg-type]
        num_blocks = self.scheduler.limits.num_blocks

        def draft(batch: InputBatch) -> Proposer:
            if draft_model is None:
                assert isinstance(proposer, MakeProposer)
                return proposer(batch, num_blocks, draws=acceptance == "rejection")
            forward = TorchForward(
                draft_model, num_blocks=num_blocks, block_size=BLOCK_SIZE, kv_dtype=draft_model.dtype
            )
            forward.kv.tensor.fill_(torch.nan)
            draws, chunk = acceptance == "rejection", self.scheduler.limits.max_num_batched_tokens
            return DraftModelProposer(forward, batch, num_blocks=num_blocks, max_chunk=chunk, draws=draws)

        self.runner: ModelRunner | DeviceRunner = ModelRunner(
            TorchForward(
                model, num_blocks=self.scheduler.limits.num_blocks, block_size=BLOCK_SIZE, kv_dtype=model.dtype
            ),
            max_num_seqs=self.scheduler.limits.max_num_seqs,
            max_model_len=MAX_LEN,
            masks=masks,
            proposer=draft if draft_model is not None or callable(proposer) else proposer,
            acceptance=acceptance,
        )
        self.runner.forward.kv.tensor.fill_(torch.nan)  # a slot that is read unwritten shows up in every token
        self._plans: deque[StepPlan] = deque()
        self._launched: deque[PendingStep] = deque()
        self._plan([WorkerAttached(1)])

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        num_tokens: int,
        sampling: Sequence[SamplingParams] = (),
        grammar_keys: Mapping[int, str] | None = None,
    ) -> list[list[int]]:
        """Tokens of all prompts, which come at once; greedy ones where `sampling` has nothing for a prompt.
        grammar_keys: of those that are under a grammar, by index."""
        keys = grammar_keys or {}
        greedy = SamplingParams(seed=0, temperature=0.0)
        wanted = [*sampling, *[greedy] * (len(prompts) - len(sampling))]
        events: list[Event] = [
            Admit(
                str(index),
                0,
                1,
                "t",
                list(prompt),
                replace(each, max_tokens=num_tokens, ignore_eos=True),
                (),
                0,
                grammar_key=keys.get(index, ""),
            )
            for index, (prompt, each) in enumerate(zip(prompts, wanted, strict=True))
        ]
        tokens: list[list[int]] = [[] for _ in prompts]
        while True:
            has_step = self._plan(events)
            for deltas in self.scheduler.collect().deltas.values():
                for request_id, new in zip(deltas.request_ids, deltas.token_ids, strict=True):
                    tokens[int(request_id)] += new
            if not has_step:
                return tokens
            while self._plans and not self._is_held():  # all that there is, as a worker does
                self._launched.append(self.runner.launch(self._plans.popleft()))
            events = [self._launched.popleft().result()]

    def _is_held(self) -> bool:
        return bool(self._launched) and isinstance(step := self._launched[-1], HeldStep) and step.is_held

    def _plan(self, events: Sequence[Event]) -> bool:
        """Hand `events` in and fill the pipeline; returns whether there is a step to run."""
        while (plan := self.scheduler.step(0, events)) is not None:
            self._plans.append(plan)
            events = []
        return bool(self._plans or self._launched)
