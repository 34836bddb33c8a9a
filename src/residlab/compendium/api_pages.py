"""The pages of the API reference: a Sphinx extension that shows docstrings by autodoc and napoleon.

``{api} NAME`` on a page shows the modules that `residlab.compendium.api.PAGES` gives it: each with its own docstring, a
list of its public names and their docstrings. A page is read again when the source of one of its modules changes, and
only then are they imported. Signatures are shown as they are written. A single pair of backticks is a reference:
to a name of the same module, or of any other if no two have it; a typing slip is a warning.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import textwrap
from typing import Any, ClassVar

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective
from sphinx.util.nodes import make_refnode

import residlab
from residlab.compendium.api import PAGES, Public, names_in, public_names, source_of

_EXTERNAL = ("torch", "nn", "numpy", "transformers", "safetensors", "datasets", "ml_dtypes", "mpmath")
_BEHIND = ("See Also", "Notes", "References", "Examples")  # sections that hold text, not fields


class ApiDirective(SphinxDirective):
    """``{api} NAME``: the modules of a page, with their docstrings."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Parse a heading, a list of names and the docstrings for each module."""
        lines: list[str] = []
        for module in PAGES[self.arguments[0]]:
            for home in (module, *(one.home for one in public_names(module))):
                self.env.note_dependency(str(source_of(home)))
            lines += markdown(module)
        container = nodes.container()
        content = StringList(lines, self.get_source_info()[0])
        self.state.nested_parse(content, self.content_offset, container, match_titles=True)
        return list(container.children)


def markdown(module: str) -> list[str]:
    """Return a module's part of its page, as lines of MyST markdown around autodoc's directives."""
    names = public_names(module)
    lines = [f"## `{module.removeprefix('residlab.')}`", "", "````{eval-rst}", f".. automodule:: {module}", ""]
    lines += [".. container:: rl-api-names", ""]
    for one in names:
        lines += [f"   :py:obj:`{one.name} <{one.module}.{one.name}>`", f"      {one.summary}", ""]
    for one in names:
        lines += _entry(one)
    return [*lines, "````", ""]


def _entry(one: Public) -> list[str]:
    if isinstance(one.node, ast.FunctionDef):
        return ["", f".. autofunction:: {one.module}.{one.name}"]
    members = [f"   :members: {', '.join(one.methods)}", "   :member-order: bysource"] if one.methods else []
    return ["", f".. autoclass:: {one.module}.{one.name}", *members]


def _signature(app: Sphinx, what: str, name: str, obj: Any, options: Any, args: str, returns: str) -> Any:
    """Give autodoc a signature as the source has it, in place of one whose type aliases are spelt out."""
    function = vars(obj).get("__init__") if what == "class" else obj
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, TypeError, SyntaxError):
        return (_generated(obj), None) if what == "class" else None
    if not isinstance(node, ast.FunctionDef):
        return None
    if what in ("class", "method"):
        node.args.args = node.args.args[1:]  # self or cls
    return f"({ast.unparse(node.args)})", ast.unparse(node.returns) if node.returns and what != "class" else None


def _generated(cls: type) -> str:
    """Return the signature of a class without an __init__ in its source: a dataclass or a named tuple."""
    try:
        parameters = inspect.signature(cls).parameters.values()
    except (TypeError, ValueError):
        return ""
    shown = []
    for one in parameters:
        kind = one.annotation if isinstance(one.annotation, str) else inspect.formatannotation(one.annotation)
        made = one.default is not one.empty and "factory" in repr(one.default)
        default = "" if one.default is one.empty else f" = {'...' if made else repr(one.default)}"
        shown.append(one.name + (f": {kind}" if one.annotation is not one.empty else "") + default)
    keywords = [one.kind is one.KEYWORD_ONLY for one in parameters]
    if any(keywords):
        shown.insert(keywords.index(True), "*")
    return f"({', '.join(shown)})"


def _end_sections(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """End a section of fields where a paragraph begins behind it, such as the source of a formula.

    Numpy's style has no end of a section but the next one; napoleon takes two blank lines for it.
    """
    inside = False
    found: list[str] = []
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if line and following and set(following) == {"-"}:
            inside = line not in _BEHIND
        elif inside and line[:1].strip() and set(line) != {"-"} and found and not found[-1]:
            found.append("")
            inside = False
        found.append(line)
    lines[:] = found


def _columns(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Show an indented block as it stands if it has columns: what a module's docstring sets in rows."""
    found: list[str] = []
    block: list[str] = []
    for line in [*lines, "end"]:
        begins = line.startswith("    ") and (not found or not found[-1])
        if what == "module" and (begins or (block and (line.startswith("    ") or not line))):
            block.append(line)
            continue
        if any(re.search(r"\S   +\S", row) for row in block):
            found += ["::", "", *block]
        else:
            found += block
        block = []
        found.append(line)
    lines[:] = found[:-1]


def _exact_annotations(app: Sphinx, doctree: nodes.document) -> None:
    """Look names of annotations up as all others: Sphinx would take any of several with one name."""
    for node in doctree.findall(pending_xref):
        if node.get("refdomain") == "py" and node.get("reftype") == "class":
            node.attributes.pop("refspecific", None)


def _refer(app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: nodes.Element) -> nodes.Node | None:
    """Resolve what Sphinx's own rules do not find: names of other modules, and names that have no entry."""
    if node.get("refdomain") != "py":
        return None
    target, module = str(node["reftarget"]), str(node.get("py:module") or "residlab")
    objects = env.domaindata["py"]["objects"]
    names = [name for name in objects if name == target or name.endswith(f".{target}")]
    if len(names) > 1:
        package = module.rpartition(".")[0] + "."
        names = _preferred(names, [name for name in names if name.startswith(package)])
        names = _preferred(names, [name for name in names if objects[name].objtype != "module"])
    if len(names) == 1:
        entry = objects[names[0]]
        return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, contnode, names[0])
    # Annotations were checked by mypy; other libraries' names are theirs.
    known = node["reftype"] == "class" or target.split(".")[0] in _EXTERNAL or hasattr(builtins, target)
    return contnode if known or _is_named(target, module) else None


def _preferred(names: list[str], better: list[str]) -> list[str]:
    return better if len(names) > 1 and better else names


def _is_named(target: str, module: str) -> bool:
    """Return whether a module of residlab, or the one that speaks, defines, imports or sets that name."""
    path, _, name = target.rpartition(".")
    if target.startswith("residlab."):
        return source_of(target).is_file() or (source_of(path).is_file() and name in names_in(path))
    homes = {module, *(one.home for one in public_names(module))}
    return any(set(target.split(".")) <= names_in(home) for home in homes) or any(
        set(target.split(".")) <= names_in(one) for page in PAGES.values() for one in page
    )


def _style(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Give the pages of the reference their style, and no other page."""
    if pagename.startswith("book/api/"):
        app.add_css_file("residlab-api.css")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension, with autodoc and napoleon as it needs them."""
    app.setup_extension("sphinx.ext.autodoc")
    app.setup_extension("sphinx.ext.napoleon")
    app.config.default_role = "py:obj"
    app.config.add_module_names = False
    app.config.napoleon_google_docstring = False
    app.config.napoleon_use_param = False
    app.config.napoleon_use_rtype = False
    app.config.napoleon_attr_annotations = False
    app.config.napoleon_custom_sections = [("Attributes", "params_style")]
    app.add_directive("api", ApiDirective)
    app.connect("html-page-context", _style)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _end_sections, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", _columns, priority=300)
    app.connect("doctree-read", _exact_annotations)
    app.connect("missing-reference", _refer)
    return {"version": residlab.__version__, "parallel_read_safe": False, "parallel_write_safe": True}
