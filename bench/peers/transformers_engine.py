"""transformers for `offline_worker`: a batch starts when the one before it has ended. MODEL THREADS DTYPE"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

Stream = tuple[float, float, float, int]
FIRST_PROMPT = [67, 68, 69]


class StaticBatches:
    """Prompts of a batch have one length, so nothing is padded."""

    def __init__(self, folder: str, num_threads: int, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(num_threads)
        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[Stream]:
        streams: list[Stream] = []
        begun = time.perf_counter()
        for start in range(0, len(prompts), concurrency):
            batch = prompts[start : start + concurrency]
            sent = time.perf_counter() - begun
            times = [moment - begun for moment in self._generate(batch, output_len)]
            streams += [(sent, times[0], times[-1], len(times))] * len(batch)
        return streams

    def _generate(self, prompts: Sequence[Sequence[int]], output_len: int) -> list[float]:
        """When each of the batch's tokens came."""
        times: list[float] = []

        def note(ids: Any, scores: Any) -> Any:
            times.append(time.perf_counter())
            return self._torch.zeros(len(prompts), dtype=self._torch.bool)

        ids = self._torch.tensor(prompts)
        with self._torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=self._torch.ones_like(ids),
                max_new_tokens=output_len,
                min_new_tokens=output_len,
                do_sample=False,
                stopping_criteria=[note],
            )
        return times


def load(arguments: Sequence[str]) -> Callable[[Sequence[Sequence[int]], int, int], list[Stream]]:
    engine = StaticBatches(arguments[0], int(arguments[1]), arguments[2])
    engine.run([FIRST_PROMPT], 1, 1)
    return engine.run
