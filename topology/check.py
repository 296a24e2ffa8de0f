"""Whether a topology can run: the rules that no single field shows, and what this version does not have yet.

Types, ranges and names of fields were checked when the file was decoded.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..checkpoints.shape import ModelShape
from .arithmetic import DTYPE_BYTES
from .boards import MAX_SLOT_BYTES, plan_bytes, result_bytes
from .check_processes import check_processes
from .check_server import check_server
from .check_speculative import check_speculative
from .decode import show_value
from .device import has_gpu
from .load import raise_problems
from .plan import block_bytes_of, blocks_for
from .problem import Places, Problem
from .render import render_bytes
from .schema import Topology

MAX_BLOCK_SIZE = 256
_SIZES = (
    ("model", "max_model_len"),
    ("model", "dtype"),
    ("model", "kv_dtype"),
    ("kv_cache", "block_size"),
    ("scheduler", "max_num_seqs"),
)
"""What decides how large plans and requests are."""
MIN_DTYPE_BYTES = 2
"""Of the smallest type that keys and values can have while `kv_dtype` is auto."""


def check_topology(topology: Topology, shape: ModelShape | None = None) -> list[Problem]:
    """All problems, none if it can run; `shape` adds the rules that need the model."""
    problems: list[Problem] = []
    _check_model(topology, shape, problems)
    _check_scheduler(topology, problems)
    _check_slots(topology, shape, problems)
    _check_kv_cache(topology, shape, problems)
    check_server(topology, problems)
    _check_grammar_backend(topology, problems)
    check_speculative(topology, problems)
    if topology.journal is not None and topology.journal.path == "":
        problems.append(Problem(("journal", "path"), 'path = ""', "a path without the number", "write one"))
    check_processes(topology, shape, problems)
    return problems


def ensure_valid(topology: Topology, shape: ModelShape | None = None) -> None:
    """Raise ConfigError with all problems, one a line, if there are any that it cannot run with."""
    raise_problems([problem for problem in check_topology(topology, shape) if not problem.is_warning], Places(""))


def _check_grammar_backend(topology: Topology, problems: list[Problem]) -> None:
    """At the start, for it is loaded by the first request that needs it."""
    backend = topology.structured_output.backend
    if find_spec(backend) is None:
        got = f"backend = {show_value(backend)}, which is not installed"
        path, advice = ("structured_output", "backend"), f"pip install {backend}, or name another backend"
        problems.append(Problem(path, got, "a package that is there", advice))


def _check_model(topology: Topology, shape: ModelShape | None, problems: list[Problem]) -> None:
    model = topology.model
    for name in ("source", "served_name", "chat_template"):
        if getattr(model, name) == "":
            problems.append(Problem(("model", name), f'{name} = ""', "a name that is not empty", "fill it in"))
    if model.load == "dummy" and not model.source.startswith("dummy:"):
        allowed = '"auto", or "dummy" with a source "dummy:DIRECTORY"'
        problems.append(Problem(("model", "load"), 'load = "dummy"', allowed, "write dummy: before the source"))
    if shape is not None and model.max_model_len is not None and model.max_model_len > shape.max_position:
        got = f"max_model_len = {model.max_model_len:,}"
        allowed = f"at most {shape.max_position:,}, the model's own"
        problems.append(Problem(("model", "max_model_len"), got, allowed, "lower it or leave it out"))


def _check_scheduler(topology: Topology, problems: list[Problem]) -> None:
    section = topology.scheduler
    if section.max_num_batched_tokens < section.max_num_seqs:
        got = f"max_num_batched_tokens = {section.max_num_batched_tokens:,}"
        allowed = f"at least max_num_seqs, {section.max_num_seqs:,}: a full batch of decodes takes a token for each row"
        path = ("scheduler", "max_num_batched_tokens")
        depends_on = (("scheduler", "max_num_seqs"),)
        problems.append(Problem(path, got, allowed, "raise it or lower max_num_seqs", depends_on))
    if section.watermark >= 0.5:
        allowed = "below 0.5: it is the share of the blocks that admission leaves unused"
        path = ("scheduler", "watermark")
        problems.append(Problem(path, f"watermark = {section.watermark}", allowed, "values from 0 to 0.05 are usual"))


def _check_slots(topology: Topology, shape: ModelShape | None, problems: list[Problem]) -> None:
    """The largest plan and result stay within reason: they are what the slots of the boards are made for."""
    max_model_len = topology.model.max_model_len or (shape.max_position if shape is not None else 1)
    num_bytes = max(plan_bytes(topology, max_model_len), result_bytes(topology))
    if num_bytes > MAX_SLOT_BYTES:
        section = topology.scheduler
        got = f"max_num_seqs = {section.max_num_seqs:,}, max_num_batched_tokens = {section.max_num_batched_tokens:,}"
        most, largest = render_bytes(MAX_SLOT_BYTES), render_bytes(num_bytes)
        allowed = f"plans and results of at most {most}, these may have {largest}"
        path = ("scheduler", "max_num_batched_tokens")
        problems.append(Problem(path, got, allowed, "lower them, or [model] max_model_len", _SIZES))


def _check_kv_cache(topology: Topology, shape: ModelShape | None, problems: list[Problem]) -> None:
    section = topology.kv_cache
    sizes = [name for name in ("num_blocks", "memory_bytes", "memory_share") if getattr(section, name) is not None]
    if len(sizes) > 1:
        got = ", ".join(f"{name} = {getattr(section, name)}" for name in sizes)
        allowed = "one of num_blocks, memory_bytes, memory_share"
        problems.append(Problem(("kv_cache", sizes[1]), got, allowed, "keep one of them"))
    if section.block_size % 8 or section.block_size > MAX_BLOCK_SIZE:
        got = f"block_size = {section.block_size}"
        allowed = f"multiples of 8 from 8 to {MAX_BLOCK_SIZE}"
        problems.append(Problem(("kv_cache", "block_size"), got, allowed, "16 is usual"))
        return
    if has_gpu(topology):
        _check_gpu_cache(topology, problems)
    if len(sizes) == 1:
        _check_pool(topology, shape, problems)


def _check_gpu_cache(topology: Topology, problems: list[Problem]) -> None:
    """What the attention kernels of a GPU read."""
    model, block_size = topology.model, topology.kv_cache.block_size
    if block_size & (block_size - 1):
        got = f"block_size = {block_size}"
        problems.append(Problem(("kv_cache", "block_size"), got, "a power of two on a GPU", "16 is usual"))
    if "auto" not in (model.dtype, model.kv_dtype) and model.kv_dtype != model.dtype:
        got = f"kv_dtype = {show_value(model.kv_dtype)}, dtype = {show_value(model.dtype)}"
        problems.append(Problem(("model", "kv_dtype"), got, "dtype itself on a GPU", "leave it out"))


def _check_pool(topology: Topology, shape: ModelShape | None, problems: list[Problem]) -> None:
    """A pool of a given size holds one request of full length. With an unknown data type: of the smallest."""
    section = topology.kv_cache
    max_model_len = topology.model.max_model_len or (shape.max_position if shape is not None else None)
    if max_model_len is None:
        return
    needed = blocks_for(max_model_len, section.block_size)
    request = f"one request of max_model_len = {max_model_len:,} tokens"
    advice = "raise it or lower [model] max_model_len"
    if section.num_blocks is not None and section.num_blocks < needed:
        got = f"num_blocks = {section.num_blocks:,}"
        path = ("kv_cache", "num_blocks")
        problems.append(Problem(path, got, f"at least {needed:,}: {request}", advice, _SIZES))
    if section.memory_bytes is not None and shape is not None:
        dtype = topology.model.kv_dtype if topology.model.kv_dtype != "auto" else topology.model.dtype
        dtype_bytes = DTYPE_BYTES.get(dtype, MIN_DTYPE_BYTES)
        needed_bytes = needed * block_bytes_of(shape, section.block_size, dtype_bytes)
        if section.memory_bytes < needed_bytes:
            got = f"memory_bytes = {section.memory_bytes:,}"
            path = ("kv_cache", "memory_bytes")
            problems.append(Problem(path, got, f"at least {needed_bytes:,}: {request}", advice, _SIZES))
