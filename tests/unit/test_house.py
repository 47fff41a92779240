"""The shape of the house: no import cycle, frameworks in backends only, backends apart from all but the contract."""

import ast
import dataclasses
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FRAMEWORKS = {"flax", "jax", "jaxlib", "keras", "optax", "tensorflow", "torch"}
OWN_FRAMEWORKS = {
    "unifit_torch": {"torch"},
    "unifit_jax": {"jax", "jaxlib", "optax"},
    "unifit_tensorflow": {"tensorflow", "keras"},
}
OPEN_TO_BACKENDS = ("unifit.contract", "unifit.errors")


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module: by whom, on which line. `typing_only` ones are never executed."""

    importer: str
    target: str
    where: str
    typing_only: bool


def module_files(root: Path) -> dict[str, Path]:
    """Source file by module name, of the front end and of every backend."""
    files = {}
    for base in (root, root / "backends"):
        for path in sorted(base.glob("unifit*/**/*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


def imports(root: Path) -> list[Import]:
    """Every import in the tree, those inside functions and by import_module("...") included."""
    files = module_files(root)
    return [found for name, path in files.items() for found in imports_of(name, path, root, files)]


def imports_of(name: str, path: Path, root: Path, files: dict[str, Path]) -> list[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        for statement in block.body
        for node in ast.walk(statement)
    }
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = []
    for node in ast.walk(tree):
        for target in targets(node, package, files):
            where = f"{path.relative_to(root)}:{node.lineno}"
            found.append(Import(name, target, where, id(node) in typing_only))
    return found


def targets(node: ast.AST, package: list[str], files: dict[str, Path]) -> list[str]:
    """Modules that a statement imports: `from a import b` is a.b where that is a module, else a."""
    match node:
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=module, names=names, level=level):
            start = package[: len(package) - level + 1] if level else []
            stem = ".".join([*start, *([module] if module else [])])
            return [full if (full := f"{stem}.{alias.name}") in files else stem for alias in names]
        case ast.Call(
            func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(target)), *_]
        ):
            return [target] if called in ("import_module", "__import__") and not target.startswith(".") else []
    return []


def import_cycles(root: Path) -> list[str]:
    """Rings of modules that import each other, one line each; typing-only imports make none."""
    files = module_files(root)
    edges: dict[str, set[str]] = {name: set() for name in files}
    for found in imports(root):
        if found.target in files and not found.typing_only:
            edges[found.importer].add(found.target)

    def reachable(start: str) -> set[str]:
        seen: set[str] = set()
        stack = [start]
        while stack:
            new = edges[stack.pop()] - seen
            seen |= new
            stack.extend(new)
        return seen

    reach = {name: reachable(name) for name in files}
    rings = {frozenset(other for other in reach[name] if name in reach[other]) for name in files if name in reach[name]}
    return [f"import cycle: {', '.join(sorted(ring))}" for ring in sorted(rings, key=sorted)]


def stray_frameworks(root: Path) -> list[str]:
    """Framework imports in the front end, and in a backend those of another backend's framework."""
    notes = []
    for found in imports(root):
        framework = found.target.split(".")[0]
        own = OWN_FRAMEWORKS.get(found.importer.split(".")[0], set())
        if framework in FRAMEWORKS - own:
            notes.append(f"{found.where}: {found.importer} imports {framework}")
    return notes


def stray_reaches(root: Path) -> list[str]:
    """Imports by a backend of another backend, or of the front end beyond what is open to it."""
    notes = []
    for found in imports(root):
        home, top = found.importer.split(".")[0], found.target.split(".")[0]
        if top != home and (home.startswith("unifit_") and top == "unifit" or top.startswith("unifit_")):
            if not any(found.target == part or found.target.startswith(f"{part}.") for part in OPEN_TO_BACKENDS):
                notes.append(f"{found.where}: {found.importer} imports {found.target}")
    return notes


RULES = {"cycles": import_cycles, "frameworks": stray_frameworks, "reaches": stray_reaches}


def write_tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize("rule", RULES)
def test_house_keeps_its_rules(rule):
    assert len(module_files(ROOT)) > 10
    assert RULES[rule](ROOT) == []


SOUND = {
    "unifit/__init__.py": "from unifit import model\nfrom unifit.errors import Error\n",
    "unifit/errors.py": "class Error(Exception): ...\n",
    "unifit/contract/__init__.py": "from .values import Value\n",
    "unifit/contract/values.py": "from __future__ import annotations\nimport numpy\nValue = 1\n",
    "unifit/model.py": (
        "from typing import TYPE_CHECKING\nfrom . import errors\nif TYPE_CHECKING:\n    from unifit import loop\n"
    ),
    "unifit/loop.py": "from unifit import model\n",
    "backends/unifit_jax/__init__.py": "import jax\nimport optax\nfrom . import ops\n",
    "backends/unifit_jax/ops.py": "import jax.numpy\nfrom unifit.contract import Value\nfrom unifit import errors\n",
}

BROKEN = {
    "two modules": ("cycles", "unifit/errors.py", "import unifit.model\n"),
    "package by name": ("cycles", "unifit/errors.py", "from unifit import Model\n"),
    "inside a function": ("cycles", "unifit/errors.py", "def f():\n    from . import loop\n"),
    "typing's other branch": (
        "cycles",
        "unifit/model.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    pass\nelse:\n    from unifit import loop\n",
    ),
    "framework": ("frameworks", "unifit/loop.py", "import torch.nn\n"),
    "framework, late": ("frameworks", "unifit/loop.py", "def f():\n    from jax import numpy\n"),
    "framework, by call": ("frameworks", "unifit/loop.py", "import importlib\nimportlib.import_module('tensorflow')\n"),
    "other framework": ("frameworks", "backends/unifit_jax/ops.py", "import tensorflow\n"),
    "other backend": ("reaches", "backends/unifit_jax/ops.py", "import unifit_torch.ops\n"),
    "front end": ("reaches", "backends/unifit_jax/ops.py", "from unifit.model import x\n"),
    "front end's root": ("reaches", "backends/unifit_jax/ops.py", "import unifit\n"),
    "front end by name": ("reaches", "backends/unifit_jax/ops.py", "from unifit import model\n"),
    "backend from front end": ("reaches", "unifit/loop.py", "import unifit_jax\n"),
}


@pytest.mark.parametrize("rule", RULES)
def test_rule_sound_tree_is_silent(rule, tmp_path):
    write_tree(tmp_path, SOUND)
    assert RULES[rule](tmp_path) == []


@pytest.mark.parametrize(("rule", "path", "text"), BROKEN.values(), ids=BROKEN)
def test_rule_broken_tree_is_told(rule, path, text, tmp_path):
    write_tree(tmp_path, {**SOUND, path: text})
    assert len(RULES[rule](tmp_path)) == 1
