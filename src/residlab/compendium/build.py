"""Build the book, and serve it on this machine."""

from __future__ import annotations

import errno
import functools
import http.server
import sys
from pathlib import Path
from typing import Any

from residlab.compendium.project import Project
from residlab.errors import ResidlabError


def build(project: Project, *, strict: bool = False, fresh: bool = False, quiet: bool = True) -> Path:
    """Execute what is stale, render the book as ``jupyter-book build .`` does, and return its front page.

    Parameters
    ----------
    project : Project
        The compendium.
    strict : bool
        Treat each warning, missing references included, as an error.
    fresh : bool
        Render every page anew.
    quiet : bool
        Show warnings and errors only.

    Raises
    ------
    ResidlabError
        If the build failed; what failed was printed.
    """
    import residlab.compendium.quick_imports  # noqa: F401, I001 (before jupyter_book)
    from jupyter_book.sphinx import build_sphinx

    overrides: dict[str, Any] = {"latex_individualpages": False, "external_toc_path": str(project.root / "_toc.yml")}
    if strict:
        overrides["nitpicky"] = True
    result = build_sphinx(
        project.root,
        project.html,
        noconfig=True,
        path_config=project.root / "_config.yml",
        confoverrides=overrides,
        warningiserror=strict,
        keep_going=strict,
        freshenv=fresh,
        force_all=fresh,
        quiet=quiet,
    )
    if isinstance(result, KeyboardInterrupt):
        raise result
    if isinstance(result, Exception) or result:
        raise ResidlabError("the book was not built; see above")
    return project.html / "index.html"


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serve the book; a page is revalidated, so that a rebuild shows at once."""

    extensions_map = http.server.SimpleHTTPRequestHandler.extensions_map | {".js": "text/javascript"}

    def end_headers(self) -> None:
        """Add the headers of a page that asks nobody else for anything."""
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def send_head(self) -> Any:
        """Answer an address that no file can have, as one with a zero byte, like any other wrong one."""
        try:
            return super().send_head()
        except ValueError:
            self.send_error(http.HTTPStatus.BAD_REQUEST)
            return None

    def log_message(self, format: str, *args: Any) -> None:
        """Report what was not found, and nothing else."""
        if len(args) > 1 and str(args[1]).startswith(("4", "5")):
            super().log_message(format, *args)


class _Server(http.server.ThreadingHTTPServer):
    """Say nothing of a reader who left before the answer was complete."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what went wrong, unless it is that."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def serve(project: Project, port: int) -> int:
    """Serve the rendered book on this machine until interrupted; port 0 takes any free one.

    Raises
    ------
    ResidlabError
        If the book is not built, or the port is taken or not allowed.
    """
    if not (project.html / "index.html").is_file():
        raise ResidlabError("the book is not built yet: run residlab build")
    handler = functools.partial(_Handler, directory=str(project.html))
    try:
        server = _Server(("127.0.0.1", port), handler)
    except OverflowError:
        raise ResidlabError(f"--port {port}: a port is a number from 0 to 65535") from None
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise ResidlabError(f"--port {port}: {error.strerror}; choose another, or 0 for any free one") from None
        raise
    with server:
        print(f"The book is at http://127.0.0.1:{server.server_port}/ (Ctrl-C ends)", file=sys.stderr, flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0
