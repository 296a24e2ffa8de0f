"""The example files load, can run with the demo model, and are drawn."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from callboard.topology import (
    check_topology,
    expand_actors,
    load_topology,
    mailbox_links,
    plan_memory,
    render_topology,
    topology_from,
)

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_PROCESSES = {"one_process": 1, "control_worker": 2, "all_apart": 4}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_example_can_run(path, smollm2):
    topology = load_topology(path)
    assert check_topology(topology, smollm2) == []
    plan_memory(topology, smollm2, 2 << 30, dtype_bytes=4, kv_dtype_bytes=4)


@pytest.mark.parametrize("name", NUM_PROCESSES)
def test_an_example_is_drawn_with_all_that_it_has(name, smollm2):
    topology = load_topology(EXAMPLES / f"{name}.toml")
    ledger = plan_memory(topology, smollm2, 8 << 30, dtype_bytes=4, kv_dtype_bytes=4)
    drawing = render_topology(topology, smollm2, ledger)
    assert drawing.count("process ") == NUM_PROCESSES[name] == len(topology.process)
    for actors in expand_actors(topology).values():
        for actor in actors:
            assert f"── {actor}\n" in drawing
    num_local = sum(link.is_local for link in mailbox_links(topology))
    assert drawing.count("by reference") == num_local
    assert drawing.count("ZMQ ipc") == 4 - num_local
    assert "4 slots of" in drawing
    weights = "622.1 MiB" if topology.model.max_model_len == 2048 else "625.1 MiB"
    assert weights in drawing and f"{ledger.num_blocks:,} blocks of 720.0 KiB" in drawing
    assert max(map(len, drawing.splitlines())) <= 100


def test_the_drawing_without_a_model_has_no_sizes():
    assert render_topology(topology_from("org/name")) == (
        "model   org/name\n"
        "        dtype auto, KV auto, max_model_len of the model\n"
        "serves  http://127.0.0.1:8000\n"
        "\n"
        "supervisor\n"
        "├── process control\n"
        "│   ├── frontend\n"
        "│   ├── tokenizer\n"
        "│   └── scheduler\n"
        "└── process worker  (cpu, 3 restarts within 60 s)\n"
        "    └── worker\n"
        "\n"
        "mailboxes\n"
        "  frontend  → tokenizer  by reference\n"
        "  tokenizer → frontend   by reference\n"
        "  tokenizer → scheduler  by reference\n"
        "  scheduler → tokenizer  by reference\n"
        "\n"
        "boards (pipeline depth 2)\n"
        "  call    scheduler → worker  4 slots\n"
        "  result  worker → scheduler  4 slots\n"
    )


def test_the_package_imports_neither_torch_nor_asyncio():
    program = (
        "import sys; sys.path[:] = " + repr(sys.path) + "; import callboard.topology; "
        "print([m for m in ('torch', 'asyncio', 'zmq') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
