"""The house of DESIGN: imports point down, never sideways in a circle; rooms without torch and asyncio stay without."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

FLOORS = {
    "errors": 0,
    "mailbox": 1, "shm_queue": 1, "topology": 1, "checkpoints": 1,
    "kv_cache": 2, "kernels": 2, "text": 2,
    "scheduling": 3, "models": 3, "speculative": 3, "structured_output": 3,
    "execution": 4, "journal": 4, "simulation": 4,
    "actors": 5,
    "server": 6, "client": 6,
    "cli": 7, "bench": 7,
}  # fmt: skip
WITHOUT_TORCH = {
    "scheduling",
    "journal",
    "kv_cache",
    "topology",
    "checkpoints",
    "text",
    "speculative",
    "structured_output",
    "mailbox",
    "shm_queue",
    "simulation",
}
WITH_ASYNCIO = {"mailbox", "shm_queue", "actors", "server", "client", "cli", "bench"}
CAST = {"frontend", "tokenizer", "scheduler", "worker", "proposer", "grammar"}
FORBIDDEN_EVERYWHERE = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}


def package_files() -> list[Path]:
    return [path for room in FLOORS if room != "errors" for path in sorted((ROOT / room).rglob("*.py"))]


def imports_of(path: Path) -> list[tuple[str, int]]:
    """Absolute dotted names of all imports, function-level and TYPE_CHECKING ones included, with their lines."""
    package = ["callboard", *path.relative_to(ROOT).parent.parts]
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if node.module is None or module == "callboard":
                found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
            else:
                found.append((module, node.lineno))
                found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "callboard" and len(parts) > 1 and parts[1] in FLOORS else None


def test_every_folder_is_on_a_floor() -> None:
    folders = {p.parent.relative_to(ROOT).parts[0] for p in ROOT.glob("*/__init__.py")}
    assert folders <= FLOORS.keys()


def test_imports_point_down_and_never_in_a_circle() -> None:
    sideways: dict[str, set[str]] = {}
    upward = []
    for path in package_files():
        room = path.relative_to(ROOT).parts[0]
        for module, line in imports_of(path):
            target = room_of(module)
            if target is None or target == room:
                continue
            if FLOORS[target] > FLOORS[room]:
                upward.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
            elif FLOORS[target] == FLOORS[room]:
                sideways.setdefault(room, set()).add(target)
    assert upward == []
    for start in sideways:
        seen, stack = set(), list(sideways[start])
        while stack:
            room = stack.pop()
            assert room != start, f"rooms of one floor import each other in a circle through {start}"
            if room not in seen:
                seen.add(room)
                stack += sideways.get(room, ())


def test_errors_import_nothing_of_the_package() -> None:
    assert [m for m, _ in imports_of(ROOT / "errors.py") if m.startswith("callboard")] == []


@pytest.mark.parametrize("room", sorted(WITHOUT_TORCH))
def test_rooms_without_torch(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (ROOT / room).rglob("*.py")
        for module, line in imports_of(path)
        if module.split(".")[0] in ("torch", "triton")
    ]
    assert found == []


def test_asyncio_stays_with_the_actors() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in package_files()
        if path.relative_to(ROOT).parts[0] not in WITH_ASYNCIO
        for module, line in imports_of(path)
        if module.split(".")[0] in ("asyncio", "uvloop")
    ]
    assert found == []


def test_no_actor_imports_another() -> None:
    found = []
    for name in CAST:
        path = ROOT / "actors" / f"{name}.py"
        if path.exists():
            found += [
                f"{name} imports {module}"
                for module, _ in imports_of(path)
                if module.startswith("callboard.actors.") and module.split(".")[2] in CAST - {name}
            ]
    assert found == []


def test_nothing_is_pickled_or_evaluated() -> None:
    found = []
    for path in package_files():
        found += [f"{path.name}:{line}" for m, line in imports_of(path) if m.split(".")[0] in FORBIDDEN_EVERYWHERE]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                found.append(f"{path.name}:{node.lineno} calls {node.func.id}")
    assert found == []


def test_the_layer_test_sees_a_planted_upward_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for room in FLOORS:
        (tmp_path / room).mkdir()
    (tmp_path / "kv_cache" / "bad.py").write_text("def f() -> None:\n    from ..execution import runner\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    with pytest.raises(AssertionError, match=r"kv_cache/bad\.py:2"):
        test_imports_point_down_and_never_in_a_circle()
