"""The example files load, can run with the demo model, and are drawn."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from callboard.topology import (
    Arithmetic,
    as_ascii,
    check_topology,
    expand_actors,
    load_topology,
    mailbox_links,
    plan_memory,
    render_topology,
    topology_from,
)
from callboard.topology.device import has_gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_PROCESSES = {"one_process": 1, "control_worker": 2, "all_apart": 5, "two_frontends": 7, "journal": 2}
"""Of those that a CPU runs."""
FLOAT32 = Arithmetic(4, 4, 4, 4, reads_kv_in_place=True)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_can_run(path, smollm2):
    topology = load_topology(path)
    assert check_topology(topology, smollm2) == []
    plan_memory(topology, smollm2, (16 if has_gpu(topology) else 2) << 30, FLOAT32)


@pytest.mark.parametrize("name", NUM_PROCESSES)
def test_an_example_is_drawn_with_all_that_it_has(name, smollm2):
    topology = load_topology(EXAMPLES / f"{name}.toml")
    ledger = plan_memory(topology, smollm2, 8 << 30, FLOAT32)
    drawing = render_topology(topology, smollm2, ledger)
    assert drawing.count("process ") == NUM_PROCESSES[name] == len(topology.process)
    for actors in expand_actors(topology).values():
        assert f"│ {'   '.join(actors)} " in drawing
    transports = {link.is_local for link in mailbox_links(topology)}
    assert ("by reference" in drawing, "ZMQ ipc" in drawing) == (True in transports, False in transports)
    assert "4 slots of" in drawing
    weights = "622.1 MiB" if topology.model.max_model_len == 2048 else "625.1 MiB"
    assert weights in drawing and f"{ledger.num_blocks:,} blocks of 720.0 KiB" in drawing
    for line in ("KV cache", "activations", "graphs", "boards", "runtime", "left free", "available"):
        assert f"\n  {line} " in drawing
    lines = drawing.splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() for line in lines)
    ascii_lines = as_ascii(drawing).splitlines()
    assert "".join(ascii_lines).isascii()
    assert [len(line) for line in ascii_lines] == [len(line) for line in lines]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_an_example_says_first_when_to_use_it(path):
    first, *_ = path.read_text().split("\n\n")
    assert all(line.startswith("# ") for line in first.splitlines())
    assert re.search(r"\bFor [a-z]+ing\b|\bFor (most|many|machines|a)\b", first), first


def test_every_example_is_named_in_the_documentation():
    page = (EXAMPLES.parent / "docs" / "topology.md").read_text()
    for path in EXAMPLES.glob("*.toml"):
        assert f"`{path.name}`" in page


def test_a_topology_at_its_limits_is_drawn_within_the_width(smollm2, tmp_path):
    path = tmp_path / "t.toml"
    path.write_text(
        f'[model]\nsource = "{"x" * 200}"\n[server]\nhost = "::1"\nport = 0\n'
        f'[[process]]\nname = "{"n" * 32}"\nactors = ["frontend*8", "tokenizer*8", "scheduler", "worker"]\n'
        "threads = 64\nrestart = { max = 1000, within_s = 86400 }\n"
    )
    topology = load_topology(path)
    drawing = render_topology(topology, smollm2, plan_memory(topology, smollm2, 8 << 30, FLOAT32))
    assert max(map(len, drawing.splitlines())) <= 100
    assert "http://[::1]:any free port" in drawing
    for actor in [f"{kind}.{i}" for kind in ("frontend", "tokenizer") for i in range(8)]:
        assert drawing.count(actor) >= 2  # in its process, and in the mailboxes


def test_the_drawing_without_a_model_has_no_sizes():
    assert render_topology(topology_from("org/name")) == (
        "model   org/name\n"
        "        dtype auto, KV as dtype, max_model_len of the model\n"
        "serves  http://127.0.0.1:8000\n"
        "\n"
        "supervisor\n"
        "│\n"
        "├─┌─ process control ────────────────────────────────────────────┐\n"
        "│ │ frontend   tokenizer   scheduler   grammar                   │\n"
        "│ └──────────────────────────────────────────────────────────────┘\n"
        "│\n"
        "└─┌─ process worker (cpu) ───────────────────────────────────────┐\n"
        "  │ worker                                                       │\n"
        "  └──────────────────────────────────────────────────────────────┘\n"
        "\n"
        "mailboxes\n"
        "  frontend  ⇄ tokenizer  by reference\n"
        "  tokenizer ⇄ scheduler  by reference\n"
        "  scheduler ⇄ grammar    by reference\n"
        "  tokenizer → grammar    by reference\n"
        "\n"
        "boards (shared memory; pipeline depth 2: 2 steps in flight)\n"
        "  call    scheduler → worker   step plans  4 slots\n"
        "  result  worker → scheduler   results     4 slots\n"
        "  masks   grammar → worker     bitmasks    192 slots\n"
    )


def test_the_package_imports_neither_torch_nor_asyncio():
    program = (
        "import sys; sys.path[:] = " + repr(sys.path) + "; import callboard.topology; "
        "print([m for m in ('torch', 'asyncio', 'zmq') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
