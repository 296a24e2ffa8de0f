"""A tiny Llama with random weights from transformers: its own full forward pass is the oracle, and the same weights
behind a small paged forward pass are the model under the runner. `PlanMaker` makes plans as a scheduler would."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from callboard.checkpoints.shape import ModelShape
from callboard.execution.runner import ModelRunner
from callboard.execution.torch_forward import TorchForward
from callboard.mailbox.messages.sampling import SamplingParams
from callboard.mailbox.messages.steps import NewRow, StepPlan
from callboard.tests.kernels.conftest import pytest_pycollect_makemodule  # noqa: F401  # for test_gpu_*.py

VOCAB_SIZE = 101
BLOCK_SIZE = 4


@pytest.fixture(autouse=True, scope="session")
def single_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama():
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.35,
        attn_implementation="eager",
    )
    return LlamaForCausalLM(config).eval()


class PagedLlama:
    """The protocol that a runner expects, over the modules of a transformers Llama."""

    def __init__(self, llama: LlamaForCausalLM, dtype: torch.dtype = torch.float32) -> None:
        self.hf, self.dtype, self.device = llama, dtype, torch.device("cpu")
        config = llama.config
        self.shape = ModelShape(
            architecture="llama",
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            vocab_size=config.vocab_size,
            max_position=config.max_position_embeddings,
            rope_theta=10_000.0,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_ids=(),
            num_parameters=llama.num_parameters(),
        )
        self.local_shape = self.shape
        self.num_logit_rows: list[int] = []

    def forward(self, token_ids, positions, attention):
        assert token_ids.dtype == positions.dtype == torch.int64
        n, d = token_ids.shape[0], self.shape.head_dim
        x = self.hf.model.embed_tokens(token_ids)
        cos, sin = self.hf.model.rotary_emb(x[None], positions[None])
        for layer, block in enumerate(self.hf.model.layers):
            h, heads = block.input_layernorm(x), block.self_attn
            q, k = heads.q_proj(h).view(1, n, -1, d), heads.k_proj(h).view(1, n, -1, d)
            q, k = apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)
            x = x + heads.o_proj(attention(layer, q[0], k[0], heads.v_proj(h).view(n, -1, d)))
            x = x + block.mlp(block.post_attention_layernorm(x))
        return self.hf.model.norm(x)

    def compute_logits(self, hidden):
        self.num_logit_rows.append(hidden.shape[0])
        return self.hf.lm_head(hidden).float()


@dataclass
class Placed:
    run: int
    blocks: list[int]


@dataclass
class PlanMaker:
    """Remembers rows and blocks, hands blocks out in a scattered order, and keeps no token: `starts` may run ahead."""

    num_blocks: int
    seed: int = 0
    step: int = 0
    next_run: int = 100
    rows: dict[int, Placed] = field(default_factory=dict)
    new: list[NewRow] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = [int(b) for b in np.random.default_rng(self.seed).permutation(self.num_blocks)]

    def place(
        self,
        row,
        tokens,
        *,
        num_prompt_tokens=None,
        shared_blocks=(),
        num_blocks=None,
        choice=0,
        first_output_index=0,
        is_constrained=False,
        **sampling,
    ):
        """Put a request on a row; `shared_blocks` come first in its block table."""
        self.next_run += 1
        wanted = -(-len(tokens) // BLOCK_SIZE) if num_blocks is None else num_blocks
        blocks = list(shared_blocks)[:wanted]
        blocks += [self.free.pop() for _ in range(wanted - len(blocks))]
        self.rows[row] = Placed(self.next_run, blocks)
        params = SamplingParams(**{"seed": 0, "temperature": 0.0} | sampling)
        self.new.append(
            NewRow(
                row=row,
                run=self.next_run,
                request_id=f"request-{self.next_run}",
                choice=choice,
                attempt=0,
                num_prompt_tokens=len(tokens) if num_prompt_tokens is None else num_prompt_tokens,
                token_ids=np.array(tokens, np.int32).tobytes(),
                block_ids=np.array(blocks, np.int32).tobytes(),
                sampling=params,
                first_output_index=first_output_index,
                is_constrained=is_constrained,
            )
        )

    def remove(self, row, *, keeps_blocks=False):
        placed = self.rows.pop(row)
        if not keeps_blocks:
            self.free.extend(reversed(placed.blocks))
        self.removed.append(row)

    def plan(self, scheduled) -> StepPlan:
        """scheduled: (row, start, num_tokens, samples) for each row; blocks are appended where they are missing."""
        block_rows, block_ids = [], []
        for row, start, num_tokens, _ in scheduled:
            placed = self.rows[row]
            while len(placed.blocks) * BLOCK_SIZE < start + num_tokens:
                placed.blocks.append(self.free.pop())
                block_rows.append(row)
                block_ids.append(placed.blocks[-1])
        order = sorted(range(len(block_rows)), key=lambda i: -block_rows[i])  # the order within a row is kept
        self.step += 1
        plan = StepPlan(
            epoch=3,
            step=self.step,
            now_ns=time.monotonic_ns(),
            new_rows=self.new,
            removed_rows=np.array(self.removed, np.int32).tobytes(),
            rows=np.array([s[0] for s in scheduled], np.int32).tobytes(),
            runs=np.array([self.rows[s[0]].run for s in scheduled], np.int64).tobytes(),
            starts=np.array([s[1] for s in scheduled], np.int32).tobytes(),
            num_tokens=np.array([s[2] for s in scheduled], np.int32).tobytes(),
            samples=np.array([s[3] for s in scheduled], np.bool_).tobytes(),
            block_rows=np.array([block_rows[i] for i in order], np.int32).tobytes(),
            block_ids=np.array([block_ids[i] for i in order], np.int32).tobytes(),
        )
        self.new, self.removed = [], []
        return plan


@pytest.fixture
def plan_maker():
    return PlanMaker(num_blocks=64)


@pytest.fixture
def make_plan_maker():
    return PlanMaker


@pytest.fixture
def forward_kind():
    """Whose sampler computes with torch; `host_forward.both_samplers` takes the other one too."""
    return TorchForward


@pytest.fixture
def make_runner(llama, forward_kind):
    def make(num_blocks=64, max_num_seqs=8, max_model_len=120, kv_dtype=torch.float32, model=None, masks=None):
        runner = ModelRunner(
            forward_kind(model or PagedLlama(llama), num_blocks=num_blocks, block_size=BLOCK_SIZE, kv_dtype=kv_dtype),
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            masks=masks,
        )
        runner.forward.kv.tensor.fill_(torch.nan)  # an unused slot that is read shows up in every token
        return runner

    return make


@pytest.fixture
def paged_llama(llama):
    return lambda hf=None, dtype=torch.float32: PagedLlama(hf or llama, dtype)


@pytest.fixture(scope="session")
def greedy(llama):
    """greedy(prompt, n): the next n tokens by full recomputation, with no cache at all."""

    @torch.inference_mode()
    def tokens(prompt, n):
        ids = list(prompt)
        for _ in range(n):
            ids.append(int(llama(torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]

    return tokens


@pytest.fixture(scope="session")
def make_prompt():
    return lambda seed, length: np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()
