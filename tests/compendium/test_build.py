"""A small book built by both commands: what it shows, what stops it, and what another address adds."""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from residlab.compendium.pairs import check_address, pair, with_colab_cell
from residlab.compendium.project import Project
from residlab.errors import ResidlabError

ROOT = Project.find().root
OUTSIDE = re.compile(r'href="(https://(?:github|mybinder|colab)[^"]+)"')
JUPYTER_BOOK = str(Path(sys.executable).with_name("jupyter-book"))


@pytest.fixture
def small_book(compendium):
    """The book's own configuration over two pages and two chapters."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text())
    for key in ("logo", "bibtex_bibfiles"):
        del config[key]
    del config["html"]["favicon"]
    settings = config["sphinx"]["config"]
    settings["extensions"].remove("sphinxcontrib.bibtex")
    for key in [key for key in settings if key.startswith("bibtex")]:
        del settings[key]
    shutil.copy(ROOT / "jupytext.toml", compendium.root)
    compendium.config = config
    compendium.write_config = lambda: (compendium.root / "_config.yml").write_text(yaml.safe_dump(config))
    compendium.write_config()
    compendium.root.joinpath("index.md").write_text("# Front\n\nSee {doc}`/notebooks/01-a`.\n")
    toc = {"format": "jb-book", "root": "index", "chapters": [{"file": f"notebooks/{n}"} for n in ("01-a", "02-b")]}
    compendium.root.joinpath("_toc.yml").write_text(yaml.safe_dump(toc))
    glue = "from myst_nb import glue\nglue('answer', 42.0, display=False)\nglue('tiny', 1.5e-23, display=False)"
    path = compendium.chapter("01-a", glue)
    path.write_text(path.read_text() + "The answer is {glue:text}`answer:.0f`, or {glue:text}`tiny:.1e`.\n")
    compendium.chapter("02-b", "print('drawn', 6 * 7)")
    return compendium


def page(book, name):
    """Return the article of a page."""
    text = (book.root / "_build" / "html" / name).read_text()
    return re.search(r"<article.*?</article>", text, re.DOTALL)[0]


def jupyter_book(book):
    return subprocess.run(
        [JUPYTER_BOOK, "build", ".", "-W", "-n", "--keep-going"], cwd=book.root, capture_output=True, text=True
    )


def test_both_commands_show_the_same_and_run_only_what_changed(small_book):
    first = jupyter_book(small_book)
    assert first.returncode == 0, first.stdout + first.stderr
    shown = [page(small_book, f"notebooks/{name}.html") for name in ("01-a", "02-b")]
    assert "The answer is" in shown[0]
    assert re.search(r">42</span>", shown[0])
    assert ">1.5\u00a0×\u00a010⁻²³</span>" in shown[0]
    assert "drawn 42" in shown[1]
    start = time.monotonic()
    second = small_book.run("build", "--strict")
    assert second.returncode == 0, second.stderr
    assert time.monotonic() - start < 30
    assert "executing" not in second.stderr
    small_book.root.joinpath("index.md").write_text("# Front\n\nChanged.\n")
    third = small_book.run("build", "--strict", "--fresh")
    assert third.returncode == 0, third.stderr
    assert "executing" not in third.stderr
    assert [page(small_book, f"notebooks/{name}.html") for name in ("01-a", "02-b")] == shown
    assert "Changed." in page(small_book, "index.html")
    small_book.chapter("02-b", "print('drawn', 6 * 8)")
    fourth = small_book.run("build", "--strict")
    assert fourth.returncode == 0, fourth.stderr
    assert "02-b: executing (changed: text)" in fourth.stderr
    assert "01-a" not in fourth.stderr
    assert "drawn 48" in page(small_book, "notebooks/02-b.html")
    for name in ("index.html", "notebooks/01-a.html"):  # no address is set, so nothing points to a repository
        text = (small_book.root / "_build" / "html" / name).read_text()
        assert OUTSIDE.findall(text) == []
        assert "launch-buttons" not in text
    assert "colab" not in (small_book.root / "notebooks" / "01-a.md").read_text()


@pytest.mark.parametrize("command", ["residlab", "jupyter-book"])
def test_a_missing_number_stops_the_build(small_book, command):
    path = small_book.root / "notebooks" / "01-a.md"
    path.write_text(path.read_text() + "\nAnd {glue:text}`question:.2f`.\n")
    result = small_book.run("build") if command == "residlab" else jupyter_book(small_book)
    assert result.returncode == 1
    assert "01-a quotes numbers that it does not glue: question" in result.stderr


@pytest.mark.parametrize("command", ["residlab", "jupyter-book"])
def test_a_failing_chapter_stops_the_build_by_name(small_book, command):
    small_book.chapter("02-b", "x = 1", "1 / 0")
    result = small_book.run("build") if command == "residlab" else jupyter_book(small_book)
    assert result.returncode == 1
    assert "02-b, code cell 2, line 18 of notebooks/02-b.md: ZeroDivisionError: division by zero" in result.stderr
    assert small_book.executed("01-a").exists()
    assert "Traceback" not in result.stderr or command == "jupyter-book"  # that one prints its own


def test_a_warning_stops_a_strict_build_only(small_book):
    small_book.root.joinpath("index.md").write_text("# Front\n\nSee {doc}`/nowhere`.\n")
    unlisted = small_book.chapter("03-c", "pass")
    lenient = small_book.run("build")
    assert lenient.returncode == 0
    assert "chapter 03-c is not in _toc.yml: it was executed, but no page shows it" in lenient.stderr
    unlisted.unlink()
    for _ in range(2):  # and stops it again: nothing was mended
        strict = small_book.run("build", "--strict")
        assert strict.returncode == 1
        assert "nowhere" in strict.stderr
        assert "_toc.yml" not in strict.stderr
    small_book.root.joinpath("index.md").write_text("# Front\n")
    assert small_book.run("build", "--strict").returncode == 0


def test_a_plain_page_shows_an_explorable(small_book):
    front = small_book.root / "index.md"
    front.write_text(front.read_text() + "\n```{explorable} one-stream\n```\n")
    done = small_book.run("build", "--strict")
    assert done.returncode == 0, done.stderr
    text = (small_book.root / "_build" / "html" / "index.html").read_text()
    assert 'id="explore-one-stream"' in text
    assert "plotly.min.js" in text
    assert "forms/one_stream.js" in text


@pytest.mark.parametrize("name", ["no-such", "stream", "One", "panels"])
def test_an_explorable_that_a_page_cannot_show_is_named(small_book, name):
    (small_book.root / "index.md").write_text(f"# Front\n\n{{doc}}`/notebooks/01-a`\n\n```{{explorable}} {name}\n```\n")
    done = small_book.run("build")
    assert done.returncode != 0
    assert f"index shows the explorable '{name}'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_number_glued_as_something_else_is_one_sentence(small_book):
    small_book.chapter("02-b", "import numpy as np\nfrom myst_nb import glue\nglue('v', np.float64(3), display=False)")
    result = small_book.run("build", "--strict")
    assert result.returncode == 1
    assert "02-b: v is glued as" in result.stderr
    assert "Traceback" not in result.stderr
    assert "sphinx-doc" not in result.stderr


def test_two_builds_at_once_wait(small_book):
    cell, gate = small_book.gate()
    small_book.chapter("02-b", cell, "print('drawn')")
    first = small_book.started("build")
    while not (small_book.root / ".residlab.lock-holder").exists():
        assert first.poll() is None
        time.sleep(0.02)
    second = subprocess.Popen(
        [JUPYTER_BOOK, "build", "."], cwd=small_book.root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    waiting = next((line for line in second.stderr if "waiting" in line), "it never waited")
    gate.touch()
    assert waiting.startswith("residlab: waiting for another process")
    _, first_said = first.communicate(timeout=120)
    _, second_said = second.communicate(timeout=120)
    assert first.returncode == 0, first_said
    assert second.returncode == 0, second_said
    assert "02-b: executing" in first_said
    assert "executing" not in second_said


def test_with_an_address_buttons_and_the_colab_cell_appear(small_book):
    address = "https://github.com/someone/residual"
    small_book.config["sphinx"]["config"]["residlab_repository"] = address
    small_book.write_config()
    pair(Project(small_book.root))
    result = small_book.run("build", "--strict")
    assert result.returncode == 0, result.stderr
    links = OUTSIDE.findall((small_book.root / "_build" / "html" / "notebooks" / "01-a.html").read_text())
    path = "notebooks/01-a"
    assert set(links) == {
        address,
        f"{address}/edit/main/{path}.md",
        f"{address}/issues/new?title=Issue%20on%20page%20%2F{path}.html&body=Your%20issue%20content%20here.",
        f"https://mybinder.org/v2/gh/someone/residual/main?urlpath=lab/tree/{path}.ipynb",
        f"https://colab.research.google.com/github/someone/residual/blob/main/{path}.ipynb",
    }
    assert (small_book.root / f"{path}.ipynb").is_file()  # what the last two open
    notebook = (small_book.root / f"{path}.ipynb").read_text()
    assert f'residlab[book] @ git+{address}\\"' in notebook
    assert "google.colab" not in page(small_book, f"{path}.html")
    small_book.config["sphinx"]["config"]["residlab_repository"] = ""
    small_book.write_config()
    pair(Project(small_book.root))
    assert "colab" not in (small_book.root / f"{path}.ipynb").read_text()


def test_the_colab_cell_comes_and_goes_without_a_trace():
    for path in (ROOT / "notebooks").glob("*.md"):
        text = path.read_text()
        once = with_colab_cell(text, "https://github.com/a/b")
        assert once != text
        assert with_colab_cell(once, "https://github.com/a/b") == once
        assert with_colab_cell(once, "") == text


@pytest.mark.parametrize(
    "address", ["http://github.com/a/b", "https://github.com/a", 'https://h/a/b";x', 3, "javascript:1"]
)
def test_an_address_that_is_none_is_refused(address, small_book):
    with pytest.raises(ResidlabError, match="is not an address of the form https://HOST/OWNER/REPOSITORY"):
        check_address(address)
