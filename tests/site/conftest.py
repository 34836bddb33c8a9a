"""The rendered book, opened from disk and from the server that readers use."""

import re
import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def pages(book):
    """Return the book's pages, relative to its folder."""
    found = sorted(path.relative_to(book).as_posix() for path in book.rglob("*.html") if "_static" not in path.parts)
    return [page for page in found if page not in ("genindex.html", "prf-prf.html", "search.html")]


@pytest.fixture(scope="session")
def served(project, book):
    """Serve the book with the real command, and return its address."""
    command = [sys.executable, "-m", "residlab.cli", "serve", "--port", "0", "--root", str(project.root)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    address = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline())[0]
    yield address
    process.terminate()
    process.communicate(timeout=10)


@pytest.fixture(params=["file", "http"])
def base(request, book):
    """Return the address of the book, once as files, once over http."""
    return book.as_uri() + "/" if request.param == "file" else request.getfixturevalue("served")
