"""The API reference: everything public is on a page, references resolve, signatures are those of the source."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import residlab
from residlab.compendium.api import INTERNAL, PAGES, WHOLE, names_in, public_names
from residlab.compendium.api_pages import _columns, _end_sections, _generated, _is_named, _signature, markdown
from residlab.models.config import ModelConfig
from residlab.theory.cost import Work

MODULES = [module for modules in PAGES.values() for module in modules]
SOURCE = Path(residlab.__file__).parent


def test_each_module_of_the_library_is_on_one_page_or_internal_with_a_reason():
    assert len(set(MODULES)) == len(MODULES)
    assert not set(MODULES) & set(INTERNAL)
    reexporting = {module for module in MODULES if SOURCE.joinpath(*module.split(".")[1:]).is_dir()}
    found = set()
    for package in WHOLE:
        for path in (SOURCE / package).rglob("*.py"):
            module = ".".join(("residlab", *path.relative_to(SOURCE).with_suffix("").parts))
            if path.name != "__init__.py" and module.rpartition(".")[0] not in reexporting:
                found.add(module)
    listed = {module for module in (*MODULES, *INTERNAL) if module.split(".")[1] in WHOLE} - reexporting
    assert found == listed


@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_its_modules(page, project):
    text = (project.root / "book" / "api" / f"{page}.md").read_text()
    assert re.findall(r"```\{api\} (\S+)", text) == [page]
    assert f"book/api/{page}\n" in (project.root / "_toc.yml").read_text().replace("\n ", "\n ")


@pytest.mark.parametrize("module", MODULES)
def test_each_public_name_of_a_module_has_an_entry(module):
    lines = markdown(module)
    for one in public_names(module):
        kind = "class" if one.node.__class__.__name__ == "ClassDef" else "function"
        assert f".. auto{kind}:: {module}.{one.name}" in lines
        assert one.summary


def test_a_package_shows_what_it_exports():
    import residlab.kernels
    import residlab.models.hf

    for package in (residlab.kernels, residlab.models.hf):
        shown = {one.name for one in public_names(package.__name__)}
        assert shown == {name for name in package.__all__ if callable(getattr(package, name)) and name != "Backend"}


@pytest.mark.browser
def test_entries_are_on_the_rendered_pages(book):
    for page, modules in PAGES.items():
        html = (book / "book" / "api" / f"{page}.html").read_text()
        for module in modules:
            for one in public_names(module):
                assert f'id="{module}.{one.name}"' in html, f"{module}.{one.name} is not on {page}"


def test_a_paragraph_behind_a_section_ends_it():
    lines = ["Bound.", "", "Raises", "------", "ValueError", "    If not.", "", "Source: chapter 2."]
    _end_sections(None, "function", "", None, None, lines)
    assert lines[5:9] == ["    If not.", "", "", "Source: chapter 2."]
    kept = ["Parameters", "----------", "x", "    One.", "", "    More.", "y", "", "Notes", "-----", "A.", "", "B."]
    lines = list(kept)
    _end_sections(None, "function", "", None, None, lines)
    assert lines == kept


def test_columns_of_a_module_stand_as_they_are():
    lines = ["Rows:", "", "    a      one", "    b      two", "", "Text.", "", "    ``x = y``", "", "end"]
    _columns(None, "module", "", None, None, lines)
    assert lines == [
        "Rows:", "", "::", "", "    a      one", "    b      two", "", "Text.", "", "    ``x = y``", "", "end"
    ]  # fmt: skip


def test_signatures_are_those_of_the_source():
    from residlab.theory import chebyshev

    shown = _signature(None, "function", "", chebyshev.count_bound, None, "", "")
    assert shown == ("(d: ArrayLike, kappa: ArrayLike, *, comparison: Comparison='>')", "IntArray")
    assert _generated(Work).startswith("(entry: int, token: int")
    assert "width: int" in _generated(ModelConfig)


@pytest.mark.parametrize(
    ("target", "module", "known"),
    [
        ("ResidlabError", "residlab.models.config", True),
        ("ModelConfig.init_std", "residlab.models.init", True),
        ("residlab.data.cache.cache_dir", "residlab.training.corpus", True),
        ("residlab.data.cache.cache_dirs", "residlab.training.corpus", False),
        ("residlab.data.caches", "residlab.training.corpus", False),
        ("no_such_name", "residlab.theory.chebyshev", False),
    ],
)
def test_a_typing_slip_in_a_reference_is_seen(target, module, known):
    assert _is_named(target, module) is known


def test_names_are_read_without_importing():
    assert {"kappa_from_probability", "FloatArray", "np"} <= names_in("residlab.theory.chebyshev")


def test_a_reference_that_does_not_resolve_stays_unresolved():
    from residlab.compendium.api_pages import _refer

    env = SimpleNamespace(domaindata={"py": {"objects": {}}})
    node = {"refdomain": "py", "reftarget": "no_such_name", "reftype": "obj", "py:module": "residlab.theory.chebyshev"}
    assert _refer(None, env, node, "text") is None
    assert _refer(None, env, node | {"reftarget": "torch.Tensor"}, "text") == "text"
