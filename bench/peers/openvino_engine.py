"""OpenVINO GenAI for `offline_worker`: requests are added as earlier ones end, and stepped together. MODEL THREADS"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

Stream = tuple[float, float, float, int]
CACHE_GIB = 2
MAX_NUM_BATCHED_TOKENS = 512
MAX_NUM_SEQS = 64
FIRST_PROMPT = [67, 68, 69]


class OpenVINO:
    """The pipeline with prefix caching and chunked prefill, as a server would have it."""

    def __init__(self, folder: str, num_threads: int) -> None:
        import numpy
        import openvino
        import openvino_genai

        self._genai = openvino_genai
        self._tensor: Callable[[Sequence[int]], Any] = lambda ids: openvino.Tensor(numpy.array([ids], numpy.int64))
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        scheduler.max_num_batched_tokens = MAX_NUM_BATCHED_TOKENS
        scheduler.max_num_seqs = MAX_NUM_SEQS
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": num_threads}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", properties)
        self._ids = count()

    def run(self, prompts: Sequence[Sequence[int]], concurrency: int, output_len: int) -> list[Stream]:
        left = deque(prompts)
        live: list[tuple[Any, float, list[float]]] = []  # (handle, sent, times of its tokens)
        streams: list[Stream] = []
        begun = time.perf_counter()
        while left or live:
            while left and len(live) < concurrency:
                sent = time.perf_counter() - begun
                live.append((self._add(left.popleft(), output_len), sent, []))
            self._pipeline.step()
            now = time.perf_counter() - begun
            still_live = []
            for handle, sent, times in live:
                while handle.can_read():
                    for output in handle.read().values():
                        times += [now] * len(output.generated_ids)
                if handle.get_status() == self._genai.GenerationStatus.FINISHED:
                    streams.append((sent, times[0], times[-1], len(times)))
                else:
                    still_live.append((handle, sent, times))
            live = still_live
        return streams

    def _add(self, prompt: Sequence[int], output_len: int) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        return self._pipeline.add_request(next(self._ids), self._tensor(prompt), config)


def load(arguments: Sequence[str]) -> Callable[[Sequence[Sequence[int]], int, int], list[Stream]]:
    engine = OpenVINO(arguments[0], int(arguments[1]))
    engine.run([FIRST_PROMPT], 1, 1)
    return engine.run
