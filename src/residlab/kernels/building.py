"""C++ for CPU tensors: built by the machine's compiler on first use, kept in the cache folder, called by ctypes.

A library is built again where its source, the compiler, the options or the processor differ.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = ("-std=c++20", "-O2", "-ftree-vectorize", "-fno-math-errno", "-fno-trapping-math")
_OUTPUT = ("-fPIC", "-shared")
# What a compiler may lack, best first: one thread and no vectors is still correct.
_OPTIONAL = (
    *(("-march=native", threads) for threads in ("-fopenmp", "-fopenmp-simd")),
    *(("-mcpu=native", threads) for threads in ("-fopenmp", "-fopenmp-simd")),
    (),
)


class BuildError(RuntimeError):
    """C++ functions cannot be built on this machine; the message says why."""


def load(name: str, source: str, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """Load a library, building it first where this machine has not done so.

    Parameters
    ----------
    name : str
        What its file in the cache folder is called, before the hash.
    source : str
        C++20 with ``extern "C"`` functions; OpenMP may be ignored, and so may its vectors.
    flags : tuple of str
        Options of the compiler that this source needs beside those of all.

    Raises
    ------
    BuildError
        If there is no C++ compiler, or it fails.
    """
    compiler = _compiler()
    if compiler is None:
        raise BuildError(f"no C++ compiler on PATH (tried {', '.join(_COMPILERS)})")
    options = (*_FLAGS, *flags, *_OUTPUT)
    parts = (source, compiler_version(), *options, *map(str, _OPTIONAL), _processor())
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    built = _cache_dir() / f"{name}-{key[:24]}.so"
    if not built.exists():
        _build(compiler, options, source, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise BuildError(f"{built} does not load ({error}); delete it to build it anew") from error


def succeeds(library: Callable[[], object], otherwise: str) -> bool:
    """Return whether ``library()`` raises no `BuildError`; if it does, warn: ``otherwise``, and why."""
    try:
        library()
    except BuildError as error:
        warnings.warn(f"{otherwise}: {error}", stacklevel=3)
        return False
    return True


def compiler_version() -> str:
    """Return the first line that the C++ compiler says of itself, or that there is none."""
    compiler = _compiler()
    if compiler is None:
        return "none"
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    return said.partition("\n")[0]


def _build(compiler: str, options: tuple[str, ...], source: str, target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as folder:
            text, made = Path(folder) / "source.cpp", Path(folder) / "made.so"
            text.write_text(source, encoding="utf-8")
            said = ""
            for optional in _OPTIONAL:
                command = [compiler, *options, *optional, str(text), "-o", str(made)]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode == 0:
                    made.replace(target)
                    return
                said = said or done.stderr
    except OSError as error:
        raise BuildError(f"cannot write to the cache folder {target.parent}: {error}") from error
    raise BuildError(f"{compiler} failed: {said.strip()[:500]}")


def _cache_dir() -> Path:
    import platformdirs

    return platformdirs.user_cache_path("residlab", appauthor=False) / "kernels"


def _processor() -> str:
    # A home folder may be shared by machines that understand different instructions.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join([platform.machine(), platform.processor(), *sorted({x for x in lines if x.startswith(wanted)})])


def _compiler() -> str | None:
    return next(filter(None, map(shutil.which, _COMPILERS)), None)
