"""All layers of a decoder over the tokens of one step, as each thread of a team runs it.

A layer is nine phases with a barrier behind each; within a phase the threads claim tokens, panels, or (row, key head).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .attention import attend_chunk, attend_token, write_row
from .compiled import compiled
from .embedding import read_row
from .linear import multiply
from .meeting import barrier, claim, clock
from .rows import gate, rms_norm, round_row
from .step_arguments import (
    AFTER_ATTENTION_NORM,
    AFTER_MLP_NORM,
    BITS,
    DOWN,
    GATE_UP,
    INPUT_NORM,
    INPUTS,
    MLP_NORM,
    OUTPUT,
    QKV,
    Buffers,
    Decoder,
    Float32s,
    Int64s,
    Rows,
    Scratch,
    Step,
)

_EMBEDDING, _NORMS, _QKV, _PLACE, _ATTENTION, _OUTPUT, _GATE_UP, _ACTIVATION, _DOWN, _HEAD = range(10)
"""As `PHASES`."""
_ZERO = np.float32(0.0)


@compiled
def _prepare(state, thread, matrix, num_tokens, rows):
    """What a matrix takes, of rows.x: rounded, if it is an integer matrix."""
    if matrix[BITS] <= 8:
        while True:
            t = claim(state, thread)
            if t >= num_tokens:
                break
            round_row(rows.x[t, : matrix[INPUTS]], rows.fine_from, rows.values[t], rows.scales[t])
    barrier(state, thread)


@compiled
def _embed(state, thread, matrix, token_ids, scale, hidden):
    while True:
        t = claim(state, thread)
        if t >= token_ids.size:
            break
        read_row(matrix, token_ids[t], scale, hidden[t])
    barrier(state, thread)


@compiled
def _norm(state, thread, matrix, hidden, weight, eps, num_tokens, rows):
    while True:
        t = claim(state, thread)
        if t >= num_tokens:
            break
        x = rows.x[t, : hidden.shape[1]]
        rms_norm(hidden[t], weight, eps, x)
        if matrix[BITS] <= 8:
            round_row(x, rows.fine_from, rows.values[t], rows.scales[t])
    barrier(state, thread)


@compiled
def _turn(x, table):
    """x: float32 [head_dim], in place; table: [2, head_dim]."""
    half = x.size // 2
    cos, sin = table[0], table[1]
    for i in range(half):
        a, b = x[i], x[half + i]
        x[i] = a * cos[i] + b * sin[i]
        x[half + i] = b * cos[half + i] + a * sin[half + i]


@compiled
def _place(state, thread, model, layer, step, heads, keys, values):
    """Norm and turn queries and keys, write keys and values; heads: [t, heads of q, k and v, head_dim]."""
    num_rotated = model.num_heads + model.num_kv_heads
    table = model.rotary[model.tables[layer]]
    while True:
        t = claim(state, thread)
        if t >= step.positions.size:
            break
        turn = table[step.positions[t]]
        block, place = divmod(step.slots[t], keys.shape[2])
        for h in range(num_rotated):
            if model.head_norms.shape[0]:
                rms_norm(heads[t, h], model.head_norms[layer, h], model.eps, heads[t, h])
            _turn(heads[t, h], turn)
        for h in range(model.num_kv_heads):
            write_row(keys[block, h, place], heads[t, model.num_heads + h])
            write_row(values[block, h, place], heads[t, num_rotated + h])
    barrier(state, thread)


@compiled
def _attend(state, thread, model, window, step, heads, keys, values, scratch, out):
    group = model.num_heads // model.num_kv_heads
    num_parts = len(step.pieces) * model.num_kv_heads
    while True:
        part = claim(state, thread)
        if part >= num_parts:
            break
        piece, kv_head = step.pieces[part // model.num_kv_heads], part % model.num_kv_heads
        row, first, count = piece[0], piece[1], piece[2]
        blocks = step.block_tables[step.table_rows[row]]
        position = step.positions[first]
        head = kv_head * group
        if count == 1:
            begin = max(0, position + 1 - window) if window else 0
            line = out[first, head * model.head_dim : (head + group) * model.head_dim]
            q = heads[first, head : head + group]
            attend_token(q, kv_head, keys, values, blocks, begin, position + 1, model.scale, scratch, line)
        else:
            attend_chunk(heads[first : first + count], head, group, kv_head, keys, values, blocks,
                         position, count, window, model.scale, scratch, out[first : first + count])  # fmt: skip
    barrier(state, thread)


@compiled
def _add(state, thread, hidden, x, weight, eps, num_tokens):
    """hidden += norm(x)"""
    while True:
        t = claim(state, thread)
        if t >= num_tokens:
            break
        line = x[t, : hidden.shape[1]]
        rms_norm(line, weight, eps, line)
        for i in range(line.size):
            hidden[t, i] += line[i]
    barrier(state, thread)


@compiled
def _activate(state, thread, matrix, wide, size, is_gelu, num_tokens, rows):
    while True:
        t = claim(state, thread)
        if t >= num_tokens:
            break
        x = rows.x[t, :size]
        gate(wide[t], size, is_gelu, x)
        if matrix[BITS] <= 8:
            round_row(x, rows.fine_from, rows.values[t], rows.scales[t])
    barrier(state, thread)


@compiled
def _lap(times, phase, since):
    now = clock()
    times[phase] += now - since
    return now


@compiled
def run_layers(
    state: Int64s,
    thread: int,
    model: Decoder,
    step: Step,
    buffers: Buffers,
    cache: NDArray[np.generic],
    scratch: Scratch,
    times: Int64s,
) -> None:
    """Tokens of a step become hidden states after the final norm, in buffers.hidden.

    cache: [num_layers, 2 (keys, values), num_blocks, kv_heads, block_size, head_dim], float32 or bfloat16 as uint16;
    scratch, times: of this thread.
    """
    num_tokens = step.positions.size
    hidden, rows, heads = buffers.hidden, buffers.rows, buffers.heads
    intermediate = model.matrices[0, DOWN, INPUTS]
    is_sandwiched = model.norms.shape[1] > 2
    since = clock()
    _embed(state, thread, model.embedding, step.token_ids, model.embedding_scale, hidden)
    since = _lap(times, _EMBEDDING, since)
    for layer in range(len(model.matrices)):
        matrices, norms = model.matrices[layer], model.norms[layer]
        keys, values = cache[layer, 0], cache[layer, 1]
        _norm(state, thread, matrices[QKV], hidden, norms[INPUT_NORM], model.eps, num_tokens, rows)
        since = _lap(times, _NORMS, since)
        multiply(state, thread, matrices[QKV], rows, num_tokens, buffers.qkv, 0)
        since = _lap(times, _QKV, since)
        _place(state, thread, model, layer, step, heads, keys, values)
        since = _lap(times, _PLACE, since)
        _attend(state, thread, model, model.windows[layer], step, heads, keys, values, scratch, rows.x)
        since = _lap(times, _ATTENTION, since)
        _prepare(state, thread, matrices[OUTPUT], num_tokens, rows)
        since = _lap(times, _ACTIVATION, since)
        if is_sandwiched:
            multiply(state, thread, matrices[OUTPUT], rows, num_tokens, buffers.narrow, 0)
            since = _lap(times, _OUTPUT, since)
            _add(state, thread, hidden, buffers.narrow, norms[AFTER_ATTENTION_NORM], model.eps, num_tokens)
        else:
            multiply(state, thread, matrices[OUTPUT], rows, num_tokens, hidden, 1)
            since = _lap(times, _OUTPUT, since)
        _norm(state, thread, matrices[GATE_UP], hidden, norms[MLP_NORM], model.eps, num_tokens, rows)
        since = _lap(times, _NORMS, since)
        multiply(state, thread, matrices[GATE_UP], rows, num_tokens, buffers.wide, 0)
        since = _lap(times, _GATE_UP, since)
        _activate(state, thread, matrices[DOWN], buffers.wide, intermediate, model.is_gelu, num_tokens, rows)
        since = _lap(times, _ACTIVATION, since)
        if is_sandwiched:
            multiply(state, thread, matrices[DOWN], rows, num_tokens, buffers.narrow, 0)
            since = _lap(times, _DOWN, since)
            _add(state, thread, hidden, buffers.narrow, norms[AFTER_MLP_NORM], model.eps, num_tokens)
            since = _lap(times, _NORMS, since)
        else:
            multiply(state, thread, matrices[DOWN], rows, num_tokens, hidden, 1)
            since = _lap(times, _DOWN, since)
    while True:
        t = claim(state, thread)
        if t >= num_tokens:
            break
        rms_norm(hidden[t], model.final_norm, model.eps, hidden[t])
    barrier(state, thread)
    _lap(times, _NORMS, since)


@compiled
def compute_logits(
    state: Int64s, thread: int, matrix: Int64s, rows: Rows, num_rows: int, logits: Float32s, times: Int64s
) -> None:
    """rows.x[: num_rows] holds hidden states; logits: float32 [capacity, OUTPUTS]."""
    since = clock()
    _prepare(state, thread, matrix, num_rows, rows)
    multiply(state, thread, matrix, rows, num_rows, logits, 0)
    _lap(times, _HEAD, since)
