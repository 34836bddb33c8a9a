"""The Sphinx extension of the book.

For a chapter it feeds MyST-NB the executed notebook instead of the text; before reading it executes what is stale; it
gives pages with figures their scripts and keeps every page free of outside requests; it renders the ledger, and
explorables on pages that are no chapters; it sees to typography; and it shows links to the repository only when its
address is set (``residlab_repository``).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import nbformat
from docutils import nodes
from docutils.statemachine import StringList
from myst_nb.core.read import is_myst_markdown_notebook
from myst_nb.sphinx_ import Parser as NotebookParser
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.errors import SphinxError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.fileutil import copy_asset

import residlab
import residlab.compendium.quick_imports
from residlab.compendium import ledger_page
from residlab.compendium.chapter import Chapter
from residlab.compendium.execute import execute
from residlab.compendium.numbers import glued
from residlab.compendium.pairs import check_address
from residlab.compendium.project import Project
from residlab.compendium.typography import KeepPunctuation, NumbersInPrint, OneIdEach
from residlab.errors import ResidlabError
from residlab.explore.assets import STATIC as EXPLORE_STATIC
from residlab.explore.assets import assets, plotly_script
from residlab.explore.figures import check_name

logger = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_DRAWN = ("rl-figure", "rl-explorable")  # classes of what the shared scripts draw


class BookError(SphinxError):
    """What stops a build, said in one sentence."""

    category = "The book was not built"


class ExecutedParser(NotebookParser):  # type: ignore[misc]
    """MyST-NB's parser, reading a chapter's executed notebook in place of its text."""

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse a page; chapters are the MyST notebooks under ``notebooks/``."""
        env = document.settings.env
        path = Path(env.doc2path(env.docname))
        project = env.app.residlab_project
        if path.parent != project.notebooks or not is_myst_markdown_notebook(inputstring):
            super().parse(inputstring, document)
            return
        executed = project.executed / f"{path.stem}.ipynb"
        env.note_dependency(str(executed))
        self._check_numbers(Chapter(path.stem, path), executed)
        usual = env.mystnb_config
        env.mystnb_config = usual.copy(custom_formats={".md": (f"{__name__}.read_notebook", {}, False)})
        try:
            super().parse(executed.read_text(encoding="utf-8"), document)
        finally:
            env.mystnb_config = usual

    @staticmethod
    def _check_numbers(chapter: Chapter, executed: Path) -> None:
        try:
            missing = sorted(chapter.glue_keys - glued(executed).keys())
        except ResidlabError as error:
            raise BookError(str(error)) from None
        if missing:
            raise BookError(f"{chapter.name} quotes numbers that it does not glue: {', '.join(missing)}")


def read_notebook(text: str) -> Any:
    """Return the notebook that a JSON text holds."""
    return nbformat.reads(text, as_version=4)


class LedgerDirective(SphinxDirective):
    """``{ledger}``: every claim of the papers with its verdict; ``{ledger} count`` is the one-line tally."""

    optional_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Render the ledger from ``claims.yml`` and the executed chapters."""
        project = self.env.app.residlab_project  # type: ignore[attr-defined]
        self.env.note_dependency(str(project.root / "book" / "claims.yml"))
        for name in project.chapter_names():
            self.env.note_dependency(str(project.executed / f"{name}.ipynb"))
        try:
            lines = ledger_page.tally(project) if self.arguments == ["count"] else ledger_page.markdown(project)
        except ResidlabError as error:
            raise BookError(str(error)) from None
        container = nodes.container()
        self.state.nested_parse(StringList(lines, self.get_source_info()[0]), self.content_offset, container)
        return list(container.children)


class ExplorableDirective(SphinxDirective):
    """``{explorable} name``: on a page that is no chapter, the explorable that ``name_explorable()`` declares.

    It is looked up in the module of that name in `residlab.explore`, and is called without arguments.
    """

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {}

    def run(self) -> list[nodes.Node]:
        """Embed the static face."""
        from residlab.explore import static_face

        try:
            name = check_name(self.arguments[0], "explorable").replace("-", "_")
            module = importlib.import_module(f"residlab.explore.{name}")
            html = static_face.explorable_html(getattr(module, f"{name}_explorable")())
        except (ImportError, AttributeError, TypeError, ResidlabError) as error:
            raise BookError(f"{self.env.docname} shows the explorable {self.arguments[0]!r}: {error}") from None
        for source in (module.__file__, static_face.__file__):
            self.env.note_dependency(str(source))
        return [nodes.raw("", html, format="html")]


def _open_project(app: Sphinx, config: Config) -> None:
    """Hold the project's lock until the build ends, before Sphinx reads what an earlier build left."""
    try:
        project = Project(Path(app.srcdir))
        project.check_library()
        app.residlab_hold = ExitStack()  # type: ignore[attr-defined]
        app.residlab_hold.enter_context(project.lock())  # type: ignore[attr-defined]
        _show_repository(config)
        config.residlab_code = _code_digest()
    except ResidlabError as error:
        raise BookError(str(error)) from None
    app.residlab_project = project  # type: ignore[attr-defined]


def _code_digest() -> str:
    """Return a hash of what renders pages: with another one Sphinx reads and writes every page anew."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _show_repository(config: Config) -> None:
    address = check_address(config.residlab_repository)
    if not address:
        return
    config.html_theme_options |= {
        "repository_url": address,
        "repository_branch": config.residlab_branch,
        "use_repository_button": True,
        "use_edit_page_button": True,
        "use_issues_button": True,
        "launch_buttons": {
            "notebook_interface": "jupyterlab",
            "binderhub_url": "https://mybinder.org",
            "colab_url": "https://colab.research.google.com",
        },
    }


def _execute(app: Sphinx) -> None:
    if app.builder.name not in ("html", "dirhtml", "singlehtml"):
        return
    project: Project = app.residlab_project  # type: ignore[attr-defined]
    try:
        execute(project)
        for name in project.unlisted(project.chapter_names()):
            logger.warning("chapter %s is not in _toc.yml: it was executed, but no page shows it", name)
    except ResidlabError as error:
        raise BookError(str(error)) from None


def _static_files(app: Sphinx) -> None:
    app.config.html_static_path += [str(_STATIC), str(EXPLORE_STATIC), str(plotly_script())]


def _scripts(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    body = context.get("body") or ""
    if not any(f'class="{name}' in body for name in _DRAWN):
        return
    for path in assets():
        name = path.relative_to(EXPLORE_STATIC).as_posix()
        if path.suffix == ".css":
            app.add_css_file(name)
        else:
            more = {"data-plotly": plotly_script().name} if name == "residlab-figures.js" else {}
            app.add_js_file(name, loading_method="defer", priority=600, **more)


def _mend_roles(app: Sphinx, pagename: str, template: str, context: dict[str, Any], doctree: nodes.document) -> None:
    """Take back docutils' ``role="list"`` from bibliographies: its children are entries, not list items."""
    if "body" in context:
        context["body"] = context["body"].replace(
            '<div role="list" class="citation-list">', '<div class="citation-list">'
        )


def _copy_mathjax(app: Sphinx) -> None:
    """Copy the parts of MathJax that a page can ask for: the SVG component and TeX extensions loaded on demand."""
    if app.builder.format != "html":
        return
    spec = importlib.util.find_spec("sphinx-mathjax-offline")
    if spec is None or spec.origin is None:
        raise BookError("MathJax is missing: pip install sphinx-mathjax-offline")
    source = Path(spec.origin).parent / "static" / "mathjax"
    target = Path(app.outdir) / "_static" / "mathjax"
    copy_asset(str(source / "tex-svg.js"), str(target))
    for folder in ("input/tex/extensions", "a11y", "sre"):
        if (source / folder).is_dir():
            copy_asset(str(source / folder), str(target / folder))


def _finish(app: Sphinx, exception: Exception | None) -> None:
    if exception is None:
        _copy_mathjax(app)
    if exception is not None or app._warncount:
        # Sphinx reads no page twice: without this, the warnings of one build would be forgotten by the next.
        (Path(app.doctreedir) / "environment.pickle").unlink(missing_ok=True)
    app.residlab_hold.close()  # type: ignore[attr-defined]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("myst_nb")
    app.add_source_parser(ExecutedParser, override=True)
    app.add_config_value("residlab_repository", "", "env", types=[str])
    app.add_config_value("residlab_branch", "main", "env", types=[str])
    app.add_config_value("residlab_code", "", "env", types=[str])
    app.add_directive("ledger", LedgerDirective)
    app.add_directive("explorable", ExplorableDirective)
    for transform in (KeepPunctuation, NumbersInPrint, OneIdEach):
        app.add_post_transform(transform)
    app.add_css_file("residlab-site.css")
    app.add_js_file("residlab-site.js", loading_method="defer")
    app.connect("config-inited", _open_project, priority=1)
    app.connect("builder-inited", _execute)
    app.connect("builder-inited", _static_files)
    app.connect("html-page-context", _scripts)
    app.connect("html-page-context", _mend_roles)
    app.connect("build-finished", _finish)
    return {"version": residlab.__version__, "parallel_read_safe": False, "parallel_write_safe": True}
