"""One chapter through papermill, in a process of its own.

The parent sends a request as JSON on standard input and reads events as JSON lines from standard output: ``kernel``
with its process id, ``cell`` with its number, then ``done`` or ``failed``. The executed notebook is written to a
temporary file and renamed, so that a crash leaves the previous one whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import math
import os
import platform
import re
import signal
import sys
import threading
import time
import warnings
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import residlab.compendium.quick_imports  # noqa: F401 (before papermill)
from residlab.compendium import staleness
from residlab.compendium.chapter import Chapter
from residlab.compendium.kernel import REPORT, SETUP
from residlab.compendium.parameters import Value
from residlab.compendium.project import Project
from residlab.data.cache import write_atomic

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NOT_OURS = ("residlab.compendium",)


@dataclass(frozen=True)
class Request:
    """What to run: a chapter, the values to set, how long a cell may take, where results and scratch go."""

    root: str
    chapter: str
    parameters: dict[str, Value]
    profile: str
    cell_timeout: float
    output: str
    folder: str = ""

    def to_json(self) -> str:
        """Return the request as one line."""
        return json.dumps(asdict(self))


class CellError(Exception):
    """A code cell did not succeed."""

    def __init__(self, number: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.number, self.kind, self.message = number, kind, message


def _client_class() -> type:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    from papermill.clientwrap import PapermillNotebookClient

    class Client(PapermillNotebookClient):  # type: ignore[misc]
        """Papermill's client that prepares the kernel, reports each cell, and stops at the first failure."""

        def papermill_execute_cells(self) -> None:
            self.nb_man.on_kernel(self.km.provisioner.pid)
            _die_with_parent(self.km.provisioner.pid)
            reply = self.wait_for_reply(self.kc.execute(SETUP, silent=True, store_history=False))
            if reply["content"]["status"] != "ok":
                content = reply["content"]
                raise CellError(0, "the kernel could not be prepared", f"{content['ename']}: {content['evalue']}")
            number = 0
            for index, cell in enumerate(self.nb.cells):
                if cell.cell_type == "code" and "injected-parameters" not in cell.metadata.get("tags", []):
                    number += 1
                    self.nb_man.on_cell(number)
                self.nb_man.cell_start(cell, index)
                try:
                    self.execute_cell(cell, index)
                except CellExecutionError as error:
                    # An error while a result is shown is in the outputs only; an unknown magic is in the reply only.
                    said = next((out for out in cell.outputs if out.output_type == "error"), error)
                    raise CellError(number, said.ename, _ANSI.sub("", said.evalue)) from None
                except CellTimeoutError:
                    raise CellError(number, "timeout", f"still running after {self.timeout:g} s") from None
                except DeadKernelError:
                    raise CellError(number, "kernel died", "the kernel died while this cell ran") from None
                if any(
                    "application/vnd.plotly.v1+json" in output.get("data", {}) for output in cell.get("outputs", ())
                ):
                    raise CellError(number, "figure without a page face", "show it with residlab.explore.display.show")
                self.nb_man.cell_complete(cell, index)
            reply = self.wait_for_reply(self.kc.execute("", silent=True, store_history=False, user_expressions=REPORT))
            answer = reply["content"]["user_expressions"]["modules"]
            self.nb_man.loaded = json.loads(eval_string(answer["data"]["text/plain"]))

        def set_widgets_metadata(self) -> None:
            """Keep no widget state: the book's figures need none."""

    return Client


def _die_with_parent(kernel: int) -> None:
    """End kernel and worker when the parent is gone, however it ended: nobody would wait for them."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(kernel, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def eval_string(text: str) -> str:
    """Return the string whose ``repr`` is ``text``."""
    import ast

    value = ast.literal_eval(text)
    if not isinstance(value, str):
        raise TypeError(f"expected the repr of a string, got {text[:80]!r}")
    return value


def _register_engine(on_kernel: Any, on_cell: Any, result: dict[str, Any]) -> None:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager
    from papermill.engines import Engine, papermill_engines

    class Manager(AsyncKernelManager):  # type: ignore[misc]
        """A kernel of this very interpreter, whatever kernelspecs the machine has."""

        @property
        def kernel_spec(self) -> Any:
            argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
            return KernelSpec(argv=argv, display_name="Python 3", language="python")

    class ResidlabEngine(Engine):  # type: ignore[misc]
        @classmethod
        def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> None:
            nb_man.on_cell, nb_man.loaded = on_cell, {}
            # A socket in a private folder: no port to collide on, and nobody else on the machine can listen.
            manager = Manager(transport="ipc", connection_file=str(options["kernel_folder"] / "kernel.json"))
            client = _client_class()(
                nb_man,
                km=manager,
                timeout=math.ceil(options["execution_timeout"]),  # whole seconds, nbclient wants
                startup_timeout=60,
                coalesce_streams=True,
                record_timing=False,
                iopub_timeout=30,
            )
            client.owns_km = True
            nb_man.on_kernel = on_kernel
            client.execute(cwd=options["kernel_cwd"], env=options["kernel_env"], cleanup_kc=True)
            result.update(nb_man.loaded)

    papermill_engines.register("residlab", ResidlabEngine)


def _tidy(notebook: Any) -> None:
    """Drop what papermill and front ends leave behind."""
    for key in ("papermill", "widgets", "jupytext"):
        notebook.metadata.pop(key, None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)


def kernel_environment(root: Path, folder: Path) -> dict[str, str]:
    """Return the kernel's environment: the project's library first, no network, a history of its own."""
    env = dict(os.environ)
    if (root / "src").is_dir():
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root / "src"), env.get("PYTHONPATH")]))
    env |= {"HF_HUB_OFFLINE": "1", "IPYTHONDIR": str(folder / "ipython"), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    env.pop("PLOTLY_RENDERER", None)
    return env


def run(request: Request, emit: Any) -> dict[str, Any]:
    """Execute one chapter and write the result; return the event that says so.

    Raises
    ------
    CellError
        If a cell fails, times out, or kills its kernel.
    """
    import nbformat
    import papermill

    project = Project(Path(request.root))
    project.check_library()
    chapter = Chapter(request.chapter, project.notebooks / f"{request.chapter}.md")
    loaded: dict[str, Any] = {}
    before = staleness.fingerprint(project, chapter, request.parameters)
    _register_engine(
        lambda pid: emit({"event": "kernel", "pid": pid}),
        lambda number: emit({"event": "cell", "number": number}),
        loaded,
    )
    started = time.perf_counter()
    folder = Path(request.folder)
    source = folder / f"{chapter.name}.ipynb"
    nbformat.write(chapter.notebook(), source)
    notebook = papermill.execute_notebook(
        source,
        folder / "executed.ipynb",
        parameters=request.parameters,
        engine_name="residlab",
        kernel_name="python3",
        language="python",
        progress_bar=False,
        request_save_on_cell_execute=False,
        execution_timeout=request.cell_timeout,
        kernel_folder=folder,
        kernel_cwd=str(project.notebooks),
        kernel_env=kernel_environment(project.root, folder),
    )
    seconds = time.perf_counter() - started
    package = str(Path(staleness.module_file("residlab")).parent)
    if loaded["package"] != package:
        raise CellError(0, "another library ran", f"the kernel ran {loaded['package']}, not {package}")
    predicted = {name.removeprefix("module ") for name in before if name.startswith("module ")}
    extra = [m for m in loaded["modules"] if m not in predicted and m != "residlab" and not m.startswith(_NOT_OURS)]
    _tidy(notebook)
    notebook.metadata["residlab"] = {
        "fingerprint": before if not extra else staleness.fingerprint(project, chapter, request.parameters, extra),
        "also_loaded": extra,
        "parameters": request.parameters,
        "profile": request.profile,
        "seconds": round(seconds, 2),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("residlab", "numpy", "torch", "plotly")},
    }
    output = Path(request.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, nbformat.writes(notebook).encode())
    return {"event": "done", "seconds": seconds}


def main() -> int:
    """Serve one request from standard input; all that is not an event goes to standard error."""
    events: TextIO = sys.stdout
    request = Request(**json.loads(sys.stdin.read()))
    logging.getLogger("papermill").setLevel(logging.CRITICAL)
    logging.getLogger("traitlets").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    def emit(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    with contextlib.redirect_stdout(sys.stderr), contextlib.closing(io.StringIO()):
        asyncio.set_event_loop(asyncio.new_event_loop())
        try:
            emit(run(request, emit))
        except CellError as failure:
            emit({"event": "failed", "number": failure.number, "kind": failure.kind, "message": failure.message})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
