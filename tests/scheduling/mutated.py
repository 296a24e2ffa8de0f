"""A copy of the scheduler and the block pool with one place changed, beside the real ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

COPIED = ("callboard.scheduling", "callboard.kv_cache", "callboard.tests.scheduling")


class _Loader(SourceFileLoader):
    """Compiles its source with the change in it."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self._old, self._new = old, new

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_source(fullname)
        assert source.count(self._old) == 1, f"{self._old!r} stands {source.count(self._old)} times in {fullname}"
        code: CodeType = compile(source.replace(self._old, self._new), self.path, "exec")
        return code


class _Finder(MetaPathFinder):
    def __init__(self, name: str, old: str, new: str) -> None:
        self._name, self._old, self._new = name, old, new
        self.has_loaded = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None and spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin, self._old, self._new)
        self.has_loaded = True
        return spec


@contextmanager
def mutated(module: str, old: str, new: str, wanted: str) -> Iterator[ModuleType]:
    """The module `wanted`, over copies of all in `COPIED`, in whose `module` the text `old`, which stands there once,
    reads `new`. The real modules are as before afterwards."""
    kept = {name: found for name, found in sys.modules.items() if name.startswith(COPIED)}
    attributes = [(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in kept]
    real = [(parent, name, getattr(parent, name)) for parent, name in attributes if hasattr(parent, name)]
    finder = _Finder(module, old, new)
    for name in kept:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        found = import_module(wanted)
        assert finder.has_loaded, f"{module} is not used"
        yield found
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.startswith(COPIED)]:
            del sys.modules[name]
        sys.modules.update(kept)
        for parent, name, value in real:
            setattr(parent, name, value)
