"""Finds code that turns bytes or text from outside into running code, or guards of it that are left off.

It resolves names through a module's imports, so that aliases are seen, and looks at every use of a name, not only at
calls: `map(eval, lines)` is found too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

MODULES = {
    "pickle", "_pickle", "cPickle", "pickletools", "dill", "cloudpickle", "jsonpickle", "joblib", "marshal", "shelve",
    "multiprocessing", "torch.multiprocessing", "concurrent.futures.process", "code", "codeop", "runpy", "imp",
}  # fmt: skip
"""They unpickle, or run what they are given. `multiprocessing` pickles everything between processes."""

NAMES = {
    "eval", "exec", "compile", "builtins.eval", "builtins.exec", "builtins.compile",
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "asyncio.subprocess.create_subprocess_shell",
    "concurrent.futures.ProcessPoolExecutor",
    "torch.load", "torch.jit.load", "torch.package", "torch.hub", "torch.serialization",
    "torch.utils.cpp_extension.load_inline",
    "torch.distributed.broadcast_object_list", "torch.distributed.all_gather_object",
    "torch.distributed.gather_object", "torch.distributed.scatter_object_list",
    "torch.distributed.send_object_list", "torch.distributed.recv_object_list",
    "yaml.load", "yaml.load_all", "yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all",
    "jinja2.Environment", "jinja2.Template", "jinja2.environment", "jinja2.nativetypes",
    "jinja2.sandbox.SandboxedEnvironment", "jinja2.sandbox.unsafe",
    "tempfile.mktemp", "ssl._create_unverified_context",
}  # fmt: skip
"""Dotted names that must not be used at all, nor anything under them."""

METHODS = {"send_pyobj", "recv_pyobj", "find_class", "__reduce__", "__reduce_ex__", "__subclasses__", "__globals__"}
"""Attributes that must not be used, whatever the object."""

SANDBOX = "jinja2.sandbox.ImmutableSandboxedEnvironment"
SANDBOX_FILE = "text/template_process.py"
"""The one place where a template is compiled."""

MSGSPEC_DECODERS = {f"msgspec.{form}.{name}" for form in ("json", "msgpack") for name in ("Decoder", "decode")}
OPEN_TYPES = {"Any", "object", "typing.Any"}


def find_forbidden(source: str, file: str) -> Iterator[str]:
    """`line: what` for everything in the module `source` that is forbidden; `file` is relative to the package."""
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))

    def dotted(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return aliases.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = dotted(node.value)
            return None if base is None else f"{base}.{node.attr}"
        return None

    for node in ast.walk(tree):
        for problem in _problems(node, dotted, file):
            yield f"{getattr(node, 'lineno', 0)}: {problem}"


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Local name -> dotted name, for absolute imports anywhere in the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.split(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_under(name: str, forbidden: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:count]) in forbidden for count in range(1, len(parts) + 1))


def _problems(node: ast.AST, dotted: Callable[[ast.expr], str | None], file: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                if _is_under(alias.name, MODULES | NAMES):
                    yield f"imports {alias.name}"
        case ast.ImportFrom(module=str(module), names=names, level=0):
            for alias in names:
                if alias.name == "*":
                    yield f"imports everything of {module}, which hides names from this check"
                if _is_under(f"{module}.{alias.name}", MODULES | NAMES):
                    yield f"imports {module}.{alias.name}"
                if f"{module}.{alias.name}" == SANDBOX and file != SANDBOX_FILE:
                    yield f"compiles templates outside of {SANDBOX_FILE}"
        case ast.Name() | ast.Attribute():
            name = dotted(node)
            if name is not None and _is_under(name, NAMES):
                yield f"uses {name}"
            if name == SANDBOX and isinstance(node, ast.Attribute) and file != SANDBOX_FILE:
                yield f"compiles templates outside of {SANDBOX_FILE}"
            if isinstance(node, ast.Attribute) and node.attr in METHODS:
                yield f"uses .{node.attr}"
        case ast.Call():
            yield from _call_problems(node, dotted(node.func) or "", dotted)


def _call_problems(call: ast.Call, name: str, dotted: Callable[[ast.expr], str | None]) -> Iterator[str]:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    for keyword in ("shell", "allow_pickle", "trust_remote_code"):
        if keyword in keywords and not _is_constant(keywords[keyword], False):
            yield f"calls with {keyword}= that is not False"
    for keyword in ("weights_only", "verify"):
        if keyword in keywords and _is_constant(keywords[keyword], False):
            yield f"calls with {keyword}=False"
    if name in ("__import__", "importlib.import_module") and not (call.args and isinstance(call.args[0], ast.Constant)):
        yield f"{name} of a name that is not written here"
    if name in MSGSPEC_DECODERS:
        position = 0 if name.endswith("Decoder") else None
        wanted = keywords.get("type", call.args[0] if position == 0 and call.args else None)
        if wanted is None or dotted(wanted) in OPEN_TYPES:
            yield f"{name} without a closed type"


def _is_constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
