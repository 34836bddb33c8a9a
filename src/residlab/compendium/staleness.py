"""When must a chapter run again? When something that it depends on has changed, and for nothing else.

A chapter's *fingerprint* maps each thing it depends on to a hash: its text, its parameters, the pinned versions, the
Python minor version, the code of every residlab module that it imports directly or transitively (parent packages
included; without docstrings and comments, which compute nothing), their package data, and each declared input. Two
fingerprints that differ name what changed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import residlab
from residlab.compendium.chapter import Chapter
from residlab.compendium.parameters import Value
from residlab.compendium.project import Project
from residlab.data.sources import DATA_SETS
from residlab.errors import ResidlabError

Fingerprint = dict[str, str]

_PACKAGE = Path(residlab.__file__).resolve().parent
_DISPLAY = "residlab.explore.display"  # draws every figure of the book, whether a chapter imports it or not


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@functools.lru_cache(maxsize=1024)
def _code_digest(source: bytes) -> str:
    """Hash what a module does: its syntax tree without docstrings. What is no Python is hashed as it is."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return _digest(source)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if ast.get_docstring(node):
                del node.body[0]
    return _digest(ast.dump(tree).encode())


@functools.lru_cache(maxsize=1)
def _graph():  # type: ignore[no-untyped-def]
    import grimp

    return grimp.build_graph("residlab", exclude_type_checking_imports=True, cache_dir=None)


def imported_modules(code: Iterable[str]) -> set[str]:
    """Return the residlab modules that code cells name in import statements, functions' imports included.

    IPython's own syntax (magics, shell escapes) is understood; a cell that is not Python is left to fail in the kernel.
    """
    from IPython.core.inputtransformer2 import TransformerManager

    known = _graph().modules
    found: set[str] = set()
    for source in code:
        try:
            tree = ast.parse(TransformerManager().transform_cell(source))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                continue
            found.update(name for name in names if name in known)
    return found


def required_modules(roots: Iterable[str]) -> set[str]:
    """Return ``roots`` with everything of residlab that importing them loads: upstream modules and parent packages."""
    graph = _graph()
    pending, required = set(roots), set()
    while pending:
        module = pending.pop()
        required.add(module)
        parent = module.rpartition(".")[0]
        upstream = graph.find_upstream_modules(module) | ({parent} if parent else set())
        pending |= upstream - required
    return required


def module_file(module: str) -> Path:
    """Return the source file of a residlab module."""
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _package_data(modules: Iterable[str]) -> set[Path]:
    """Return files beside the modules that are not Python: what a chapter may read when it runs.

    Scripts and styles under ``static/`` are left out: the page loads them, the chapter does not.
    """
    folders = {module_file(module).parent for module in modules}
    return {
        path
        for folder in folders
        for path in folder.iterdir()
        if path.is_file() and path.suffix not in {".py", ".pyi", ".typed"} and not path.name.startswith(".")
    }


def _input_digest(name: str, project: Project) -> str:
    if any(mark in name for mark in "*?["):
        return _digest(b"".join(_matching(name, project)))
    kind, _, rest = name.partition("/")
    if kind == "data" and rest in DATA_SETS:
        return DATA_SETS[rest].sha256[:16]
    path = (project.root / name).resolve()
    if not path.is_relative_to(project.root) or not path.is_file():
        raise ResidlabError(
            f"declared input {name!r} is neither a file of this project nor data/NAME with NAME one of "
            f"{', '.join(DATA_SETS)}"
        )
    return _digest(path.read_bytes())


def _matching(pattern: str, project: Project) -> Iterator[bytes]:
    """Yield name and content of every file of the project that a pattern names, hidden ones left out."""
    deep = any("**" in part and part != "**" for part in pattern.split("/"))
    if deep or pattern.startswith("/") or ".." in pattern:
        raise ResidlabError(f"declared input {pattern!r} is not a pattern of files of this project")
    for path in sorted(project.root.glob(pattern)):
        if path.is_file() and not path.name.startswith("."):
            yield b"%s\0%s\0" % (
                path.relative_to(project.root).as_posix().encode(),
                _digest(path.read_bytes()).encode(),
            )


def fingerprint(
    project: Project, chapter: Chapter, parameters: Mapping[str, Value], also_loaded: Iterable[str] = ()
) -> Fingerprint:
    """Return what a chapter depends on, each with its hash.

    Parameters
    ----------
    project, chapter
        The compendium and its chapter.
    parameters : mapping
        Values that the run sets.
    also_loaded : iterable of str
        Modules that an earlier run loaded although no import statement names them (``importlib``).
    """
    roots = imported_modules(cell.source for cell in chapter.code_cells)
    modules = required_modules(roots | {_DISPLAY} | {m for m in also_loaded if module_file(m).is_file()})
    result = {
        "text": _digest(chapter.text.encode()),
        "parameters": _digest(json.dumps(dict(parameters), sort_keys=True).encode()),
        "constraints": _digest(project.constraints),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
    result |= {f"module {name}": _code_digest(module_file(name).read_bytes()) for name in modules}
    result |= {
        f"file {path.relative_to(_PACKAGE).as_posix()}": _digest(path.read_bytes()) for path in _package_data(modules)
    }
    result |= {f"input {name}": _input_digest(name, project) for name in chapter.inputs}
    return dict(sorted(result.items()))


def changes(old: object, new: Mapping[str, str]) -> list[str]:
    """Return the names of what differs between two fingerprints; what is none differs in everything."""
    old = old if isinstance(old, dict) else {}
    return sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
