"""A child process in which the request with a marked seed or text raises, at one place for each mark.

Started as a supervisor's child; the places stand in `PLACES`, in the order of the marks.
"""

from __future__ import annotations

from typing import Any

from callboard.cli.child import main

FIRST_SEED = 9_000_001
PLACES = (
    "parse",
    "encode",
    "template",
    "forward",
    "sample",
    "penalties",
    "logprobs",
    "prompt logprobs",
    "detokenize",
    "stop strings",
    "describe",
    "format",
)
"""Where the request with seed FIRST_SEED + i raises."""
PLANTED_LENGTH = 7
"""Tokens of the one answer whose formatting raises."""
PLANTED_TOP = 3
"""Alternatives of the one request whose prompt raises."""


def seed_of(place: str) -> int:
    return FIRST_SEED + PLACES.index(place)


def fail(place: str) -> None:
    raise RuntimeError(f"planted in {place}")


def plant_in_text() -> None:
    from callboard.actors.prompt_encoder import PromptEncoder
    from callboard.actors.text_state import TextState
    from callboard.text import ChatTemplate, StopStrings

    encode, push, describe = PromptEncoder.encode, TextState.push, TextState.describe
    stop_push, render = StopStrings.push, ChatTemplate.render

    def faulty_encode(self: Any, generate: Any) -> Any:
        if generate.sampling.seed == seed_of("encode"):
            fail("encode")
        return encode(self, generate)

    def faulty_push(self: Any, token_ids: Any, finish: Any) -> Any:
        if self.generate.sampling.seed == seed_of("detokenize") and self.num_tokens >= 3:
            fail("detokenize")
        return push(self, token_ids, finish)

    def faulty_describe(self: Any, logprobs: Any) -> Any:
        if self.generate.sampling.seed == seed_of("describe"):
            fail("describe")
        return describe(self, logprobs)

    def faulty_stop_push(self: Any, text: str) -> Any:
        if "planted in stop strings" in self._stops:
            fail("stop strings")
        return stop_push(self, text)

    def faulty_render(self: Any, messages: Any, *options: Any, **named: Any) -> str:
        if "planted in template" in (messages[0].content or ""):
            fail("template")
        return render(self, messages, *options, **named)

    PromptEncoder.encode = faulty_encode  # type: ignore[method-assign]
    TextState.push = faulty_push  # type: ignore[method-assign]
    TextState.describe = faulty_describe  # type: ignore[method-assign]
    StopStrings.push = faulty_stop_push  # type: ignore[method-assign]
    ChatTemplate.render = faulty_render  # type: ignore[method-assign]


def plant_in_server() -> None:
    from callboard.server import answer_format
    from callboard.server.generation import GenerationHandlers

    parse, usage_object = GenerationHandlers._parse_completion, answer_format.usage_object

    def faulty_parse(self: Any, body: Any) -> Any:
        request = parse(self, body)
        if request.sampling.seed == seed_of("parse"):
            fail("parse")
        return request

    def faulty_usage(*finishes: Any) -> Any:
        usage = usage_object(*finishes)
        if usage.completion_tokens == PLANTED_LENGTH:
            fail("format")
        return usage

    GenerationHandlers._parse_completion = faulty_parse  # type: ignore[method-assign]
    answer_format.usage_object = faulty_usage


def plant_in_worker() -> None:
    import numpy as np

    from callboard.execution.compiled_forward import CompiledForward
    from callboard.execution.host_sampler import HostSampler
    from callboard.execution.logit_changes import LogitChanges
    from callboard.execution.torch_forward import TorchForward
    from callboard.execution.torch_sampler import TorchSampler

    change = LogitChanges.change

    def has(batch: Any, rows: Any, place: str) -> bool:
        return bool((batch.sampling.seed[rows] == np.uint64(seed_of(place))).any())

    def plant_in_forward(kind: Any) -> None:
        forward = kind.hidden_states

        def faulty_forward(self: Any, inputs: Any, batch: Any) -> Any:
            if has(batch, inputs.rows, "forward"):
                fail("forward")
            return forward(self, inputs, batch)

        kind.hidden_states = faulty_forward

    def faulty_change(self: Any, logits: Any, inputs: Any, masks: Any = None, **options: Any) -> Any:
        if has(self._batch, inputs.sample_rows, "penalties"):
            fail("penalties")
        return change(self, logits, inputs, masks, **options)

    def plant_in_sampler(kind: Any) -> None:
        sample, of_prompts = kind.sample, kind.prompt_logprobs

        def faulty_sample(self: Any, hidden: Any, inputs: Any, *others: Any) -> Any:
            for place in ("sample", "logprobs"):
                if has(self._batch, inputs.sample_rows, place):
                    fail(place)
            return sample(self, hidden, inputs, *others)

        def faulty_prompts(self: Any, pieces: Any, hidden: Any) -> Any:
            if pieces.num_top == PLANTED_TOP:
                fail("prompt logprobs")
            return of_prompts(self, pieces, hidden)

        kind.sample, kind.prompt_logprobs = faulty_sample, faulty_prompts

    for forward_kind in (TorchForward, CompiledForward):
        plant_in_forward(forward_kind)
    for sampler_kind in (TorchSampler, HostSampler):
        plant_in_sampler(sampler_kind)
    LogitChanges.change = faulty_change  # type: ignore[method-assign]


if __name__ == "__main__":
    plant_in_text()
    plant_in_worker()
    plant_in_server()
    main()
