"""Which modules are public, on which page of the reference, and what each defines: read from the source, not imported.

`residlab.compendium.api_pages` makes the pages of them. What is on none of them (explorables, the compendium, the
benchmarks, experiments and the command line) serves the book and may change with it.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import residlab

PAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "index": ("residlab.errors",),
        "theory-bound": (
            "residlab.theory.chebyshev",
            "residlab.theory.laws",
            "residlab.theory.variance",
            "residlab.theory.block_variance",
            "residlab.theory.branch_moments",
            "residlab.theory.propagation",
            "residlab.theory.recursion",
            "residlab.theory.cost",
            "residlab.theory.finetuning",
        ),
        "theory-remove": (
            "residlab.theory.kurtosis",
            "residlab.theory.kurtosis_depth",
            "residlab.theory.massive_outlier",
            "residlab.theory.attention_outlier",
            "residlab.theory.isometry",
            "residlab.theory.quantization",
        ),
        "theory-round": (
            "residlab.theory.summation",
            "residlab.theory.conditioning",
            "residlab.theory.norm_errors",
            "residlab.theory.feedforward",
            "residlab.theory.softmax",
            "residlab.theory.attention_jacobian",
            "residlab.theory.lipschitz",
            "residlab.theory.token_norms",
            "residlab.theory.error_growth",
        ),
        "precision": (
            "residlab.precision.formats",
            "residlab.precision.rounding",
            "residlab.precision.operations",
            "residlab.precision.summation",
            "residlab.precision.accumulation",
            "residlab.precision.matmul",
            "residlab.precision.roles",
            "residlab.precision.norms",
            "residlab.precision.softmax",
            "residlab.precision.quantization",
            "residlab.precision.quantized_models",
        ),
        "probes": (
            "residlab.probes.activations",
            "residlab.probes.attention",
            "residlab.probes.attention_branch",
            "residlab.probes.blocks",
            "residlab.probes.jacobian",
            "residlab.probes.kurtosis",
            "residlab.probes.lipschitz",
            "residlab.probes.mixing",
            "residlab.probes.quantization",
            "residlab.probes.sensitivity",
            "residlab.probes.softmax",
            "residlab.probes.stream",
            "residlab.probes.summation",
            "residlab.probes.tails",
            "residlab.probes.weights",
        ),
        "models": (
            "residlab.models.config",
            "residlab.models.transformer",
            "residlab.models.norms",
            "residlab.models.attention",
            "residlab.models.feedforward",
            "residlab.models.init",
            "residlab.models.generation",
            "residlab.models.files",
            "residlab.models.arithmetic",
            "residlab.models.rounded",
            "residlab.models.hf",
            "residlab.kernels",
        ),
        "training": (
            "residlab.training.config",
            "residlab.training.optimizer_config",
            "residlab.training.schedules",
            "residlab.training.corpus",
            "residlab.training.tokenizers",
            "residlab.training.tokens",
            "residlab.training.trainer",
            "residlab.training.optimizers",
            "residlab.training.evaluation",
            "residlab.training.checkpoint",
            "residlab.training.memory",
            "residlab.experiments.plans",
            "residlab.experiments.record",
            "residlab.experiments.recorded",
            "residlab.experiments.intervals",
        ),
    }
)
"""The pages of the reference, each with its modules in order: what is on one of them is the public API."""

INTERNAL: Mapping[str, str] = MappingProxyType(
    {
        "residlab.theory.validation": "the sentences that refuse an argument",
        "residlab.precision.compiled": "builds and calls the C++ of the emulator",
        "residlab.precision.reference": "the eager twin of the C++",
        "residlab.training.batches": "the order of the data, which the trainer asks for",
        "residlab.training.hub": "reads datasets for `residlab.training.corpus`",
        "residlab.training.parts": "the libraries' optimizers, each behind the same door",
        "residlab.training.progress": "what a person sees",
        "residlab.training.sharding": "what the trainer does where parameters are divided",
        "residlab.training.state": "what a checkpoint holds, taken apart",
        "residlab.training.textfiles": "reads text files for `residlab.training.corpus`",
    }
)
"""Modules of the packages above that are on no page, each with the reason; of a package that re-exports, its modules
are not public by themselves."""

WHOLE = ("theory", "precision", "probes", "models", "kernels", "training")
"""Packages of which every module is on a page or in `INTERNAL`."""

_ROOT = Path(residlab.__file__).parent


@dataclass(frozen=True)
class Public:
    """A public function or class: its name, the module to import it from, the one that defines it, and its source."""

    name: str
    module: str
    home: str
    node: ast.FunctionDef | ast.ClassDef

    @property
    def docstring(self) -> str:
        """Its docstring, without the indentation; empty if it has none."""
        return ast.get_docstring(self.node) or ""

    @property
    def summary(self) -> str:
        """The first paragraph of its docstring, in one line."""
        return self.docstring.split("\n\n")[0].replace("\n", " ")

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods and properties of a class whose names begin with no underscore, in the order of the source."""
        body = self.node.body if isinstance(self.node, ast.ClassDef) else []
        named = (node.name for node in body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"))
        return tuple(dict.fromkeys(named))


def source_of(module: str) -> Path:
    """Return the file of a module of residlab, found without importing it."""
    path = _ROOT.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def public_names(module: str) -> tuple[Public, ...]:
    """Return the public functions and classes of a module, in the order of its source.

    Those that it defines and whose names begin with no underscore; of a package, those that it re-exports, which its
    imports for type checkers name.
    """
    path = source_of(module)
    body = ast.parse(path.read_text(encoding="utf-8")).body
    if path.name != "__init__.py":
        return tuple(
            Public(node.name, module, module, node)
            for node in body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        )
    imports = [node for part in body for node in ast.walk(part) if isinstance(node, ast.ImportFrom) and node.level == 1]
    return tuple(
        replace(one, module=module)
        for node in imports
        for one in public_names(f"{module}.{node.module}")
        if one.name in {alias.name for alias in node.names}
    )


@functools.cache
def names_in(module: str) -> frozenset[str]:
    """Return every name that the source of a module defines, imports or sets, attributes and parameters included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source_of(module).read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found.add(node.name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                found.add(name)
            case ast.alias():
                found.add(node.asname or node.name.rpartition(".")[2])
    return frozenset(found)
