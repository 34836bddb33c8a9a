"""What runs silently inside a chapter's kernel before its first cell and after its last.

The kernel is told to draw for the page (no live widgets) and to fail where IPython by itself would only print:
an unknown magic already makes the execution reply an error, a shell command that fails does not.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import residlab.compendium.quick_imports  # noqa: F401 (before what a chapter imports)


def prepare(shell: Any) -> None:
    """Make an IPython shell draw static faces, and make failing shell commands raise.

    Parameters
    ----------
    shell : IPython.core.interactiveshell.InteractiveShell
        The kernel's shell.
    """
    from residlab.explore.display import use_static_faces

    use_static_faces(shell)
    system = shell.system

    def checked_system(command: str) -> None:
        system(command)
        _check(command, shell.user_ns.get("_exit_code", 0))

    def checked_getoutput(command: str, split: bool = True, depth: int = 0) -> Any:
        from IPython.utils.text import LSString, SList

        expanded = shell.var_expand(command, depth=depth + 1)
        # `!command` is the notebook author's own shell line; IPython's getoutput runs it the same way.
        done = subprocess.run(expanded, shell=True, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S602
        _check(command, done.returncode)
        return SList(done.stdout.splitlines()) if split else LSString(done.stdout)

    shell.system = checked_system
    shell.getoutput = checked_getoutput


def _check(command: str, code: int) -> None:
    if code:
        raise subprocess.CalledProcessError(code, command)


def loaded_modules() -> str:
    """Return, as JSON, the residlab modules that this kernel loaded and the folder they came from."""
    import residlab

    names = sorted(name for name in sys.modules if name == "residlab" or name.startswith("residlab."))
    return json.dumps({"modules": names, "package": str(Path(residlab.__file__).resolve().parent)})


SETUP = "from residlab.compendium.kernel import prepare as _prepare; _prepare(get_ipython()); del _prepare"
REPORT = {"modules": "__import__('residlab.compendium.kernel', fromlist=['x']).loaded_modules()"}
