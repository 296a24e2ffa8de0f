"""TPOT of one stream through the whole engine against `transformers` on the same weights, in alternating pairs.

    python -m callboard.bench.decode [MODEL.gguf] [--dtype float32 bfloat16] [--pairs 5] [--input 128] [--output 64]

Prints each dtype's medians, the ratio pair by pair, and the machine. Callboard is measured over HTTP by a client on the
same machine; transformers runs in this process without HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..checkpoints import read_shape, resolve_checkpoint
from ..models.gguf_loader import open_gguf
from .load import run_load
from .machine import describe_machine
from .overlap import DEMO_MODEL
from .server_process import ServerProcess

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def transformers_model(path: str, dtype_name: str) -> LlamaForCausalLM:
    """The same weights in transformers' LlamaForCausalLM, on the CPU."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = read_shape(resolve_checkpoint(path))
    config = LlamaConfig.from_dict(
        {
            "vocab_size": shape.vocab_size,
            "hidden_size": shape.hidden_size,
            "intermediate_size": shape.intermediate_size,
            "num_hidden_layers": shape.num_layers,
            "num_attention_heads": shape.num_heads,
            "num_key_value_heads": shape.num_kv_heads,
            "head_dim": shape.head_dim,
            "max_position_embeddings": shape.max_position,
            "rms_norm_eps": shape.rms_norm_eps,
            "rope_theta": shape.rope_theta,  # as checkpoints spell it: every version of transformers reads this form
            "tie_word_embeddings": shape.tie_word_embeddings,
        }
    )
    dtype = getattr(torch, dtype_name)
    model = LlamaForCausalLM(config)
    model.to(dtype)
    weights = {
        name: torch.cat([rows for _, rows in tensor.pieces()]).to(dtype)
        for name, tensor in open_gguf(path, shape).items()
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    model.train(False)
    return model


def transformers_tpot_s(path: str, dtype_name: str) -> Callable[[int, int], float]:
    """Load once; the returned function generates greedily (input, output) tokens and gives the TPOT."""
    import torch

    model = transformers_model(path, dtype_name)
    model.generation_config.eos_token_id = None

    class Clock:
        """A streamer that only looks at the clock."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, _: object) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            return

    def run(num_input: int, num_output: int) -> float:
        clock = Clock()
        ids = torch.randint(100, 40_000, (1, num_input), generator=torch.Generator().manual_seed(0))
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=num_output,
                min_new_tokens=num_output,
                do_sample=False,
                pad_token_id=0,
                streamer=clock,
            )
        tokens = clock.times[1:]  # the first call carries the prompt
        return (tokens[-1] - tokens[0]) / (len(tokens) - 1)

    return run


def callboard_tpot_s(url: str, num_input: int, num_output: int) -> float:
    """TPOT of one stream."""
    report = asyncio.run(
        run_load(url, concurrency=1, num_requests=1, input_len=num_input, output_len=num_output, vocab_size=40_000)
    )
    return report.streams[0].tpot_s


def compare(model: str, dtype: str, num_pairs: int, num_input: int, num_output: int) -> list[tuple[float, float]]:
    """(Callboard's TPOT, transformers' TPOT) in seconds, pair by pair, after one warm-up of each."""
    peer = transformers_tpot_s(resolve_checkpoint(model).path, dtype)
    pairs = []
    with ServerProcess(model, "--dtype", dtype) as server:
        for index in range(num_pairs + 1):
            ours = callboard_tpot_s(server.url, num_input, num_output)
            theirs = peer(num_input, num_output)
            if index:
                pairs.append((ours, theirs))
        server.terminate()
        server.wait()
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--dtype", nargs="*", default=["float32", "bfloat16"])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    args = parser.parse_args()
    print(describe_machine())
    for dtype in args.dtype:
        pairs = compare(args.model, dtype, args.pairs, args.input, args.output)
        ratios = sorted(ours / theirs for ours, theirs in pairs)
        print(
            f"{dtype}: TPOT Callboard {statistics.median(p[0] for p in pairs) * 1e3:.2f} ms, "
            f"transformers {statistics.median(p[1] for p in pairs) * 1e3:.2f} ms, "
            f"ratio median {statistics.median(ratios):.2f} (min {ratios[0]:.2f}, max {ratios[-1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
