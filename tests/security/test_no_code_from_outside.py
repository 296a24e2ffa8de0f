"""No pickle, no eval, no template outside of the sandbox: proved over the source of every module, and at run time."""

from __future__ import annotations

import importlib
import types
from pathlib import Path

import pytest
from forbidden_code import MODULES, SANDBOX_FILE, find_forbidden

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {"tests", "build", "dist"}


def sources() -> dict[str, str]:
    """Every Python file that is not a test: the package, its examples, the scripts of docs and CI."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        is_hidden = any(part.startswith(".") and part != ".ci" for part in relative.parts)
        if not is_hidden and relative.parts[0] not in OUTSIDE:
            found[relative.as_posix()] = path.read_text(encoding="utf-8")
    return found


def test_nothing_forbidden_stands_anywhere() -> None:
    files = sources()
    assert {"text/template_process.py", "checkpoints/gguf_file.py", ".ci/lines.py"} <= files.keys()
    assert len(files) > 100
    found = [f"{file}:{problem}" for file, source in files.items() for problem in find_forbidden(source, file)]
    assert found == []


PLANTED = [
    "import pickle",
    "import _pickle as p",
    "from pickle import loads",
    "import dill",
    "import cloudpickle as quiet",
    "from marshal import loads as read",
    "import shelve",
    "import joblib",
    "import multiprocessing.connection",
    "from multiprocessing import Queue",
    "from torch import multiprocessing",
    "def f():\n    import pickle",
    "if TYPE_CHECKING:\n    import pickle",
    "eval(x)",
    "list(map(eval, x))",
    "exec(x)",
    "run = exec",
    "compile(x, 'f', 'exec')",
    "import builtins\nbuiltins.eval(x)",
    "from builtins import exec as do",
    "__import__(name)",
    "import importlib\nimportlib.import_module(name)",
    "from importlib import import_module as load\nload(f'{name}')",
    "import os\nos.system('true')",
    "from os import popen",
    "import os as o\no.system(x)",
    "import subprocess\nsubprocess.run(x, shell=True)",
    "from subprocess import Popen\nPopen(x, shell=flag)",
    "import subprocess\nsubprocess.getoutput(x)",
    "import asyncio\nasyncio.create_subprocess_shell(x)",
    "from concurrent.futures import ProcessPoolExecutor",
    "import torch\ntorch.load(path)",
    "import torch as t\nt.load(path, weights_only=True)",
    "from torch import load as read_weights",
    "from torch.serialization import load",
    "import torch\ntorch.hub.load('a', 'b')",
    "import torch.distributed as dist\ndist.broadcast_object_list(x)",
    "from torch import distributed\ndistributed.all_gather_object(x, y)",
    "import numpy as np\nnp.load(path, allow_pickle=True)",
    "import numpy\nnumpy.load(path, allow_pickle=flag)",
    "import yaml\nyaml.load(x)",
    "from yaml import full_load",
    "import jinja2\njinja2.Environment()",
    "import jinja2\njinja2.Template(x)",
    "from jinja2 import Environment as E",
    "from jinja2.sandbox import SandboxedEnvironment",
    "from jinja2.nativetypes import NativeEnvironment",
    "from jinja2.sandbox import ImmutableSandboxedEnvironment",
    "import jinja2.sandbox\njinja2.sandbox.ImmutableSandboxedEnvironment()",
    "AutoTokenizer.from_pretrained(x, trust_remote_code=True)",
    "import msgspec\nmsgspec.msgpack.Decoder()",
    "import msgspec\nmsgspec.json.Decoder(type=Any)",
    "from msgspec.json import Decoder\nfrom typing import Any as Whatever\nDecoder(Whatever)",
    "from msgspec import msgpack as m\nm.decode(data)",
    "import msgspec\nmsgspec.json.decode(data, type=object)",
    "socket.recv_pyobj()",
    "socket.send_pyobj(x)",
    "x.__class__.__subclasses__()",
    "class A:\n    def f(self):\n        return self.__reduce__()",
    "import tempfile\ntempfile.mktemp()",
    "requests.get(x, verify=False)",
    "from os import *",
]


@pytest.mark.parametrize("source", PLANTED)
def test_what_is_planted_is_found(source: str) -> None:
    lines = source.splitlines()
    found = list(find_forbidden(source, "text/other.py"))
    assert found
    assert all(1 <= int(problem.split(":")[0]) <= len(lines) for problem in found)


HARMLESS = [
    "import re\nre.compile('x')",
    "import torch\ntorch.compile(f)\nmodel.eval()",
    "import subprocess\nsubprocess.run(['a'], shell=False)",
    "import numpy as np\nnp.load(path)\nnp.load(path, allow_pickle=False)",
    "import yaml\nyaml.safe_load(x)",
    "import msgspec\nmsgspec.msgpack.Decoder(Message)\nmsgspec.json.decode(x, type=dict[str, msgspec.Raw])",
    "import importlib\nimportlib.import_module('torch')",
    "import tempfile\ntempfile.mkdtemp()",
    "from .pickle_free import loads",
    "import os\nos.execve",
]


@pytest.mark.parametrize("source", HARMLESS)
def test_what_is_harmless_is_not(source: str) -> None:
    assert list(find_forbidden(source, "text/other.py")) == []


def test_the_sandbox_has_one_place() -> None:
    source = "from jinja2.sandbox import ImmutableSandboxedEnvironment\nImmutableSandboxedEnvironment()"
    assert list(find_forbidden(source, SANDBOX_FILE)) == []


@pytest.mark.slow
def test_no_module_holds_a_forbidden_one_at_run_time() -> None:
    """What an import in C, a star or a name built at run time would have brought."""
    files = [Path(file) for file in sources() if file.split("/")[0] not in ("docs", ".ci", "examples")]
    names = [".".join(("callboard", *path.with_suffix("").parts)).removesuffix(".__init__") for path in files]
    for name in names:
        if name.endswith("__main__"):
            continue
        try:
            module = importlib.import_module(name)
        except ImportError:
            assert name.startswith("callboard.kernels."), name  # Triton, where there is no GPU
            continue
        for value in vars(module).values():
            home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
            assert home not in MODULES, f"{name} holds {value!r}"
