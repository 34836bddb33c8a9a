"""Fetching with the real pip: what arrives, what stays, what is left when it fails or is interrupted."""

import dataclasses
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import pytest

from residlab.data import cache as storage
from residlab.data import manifest, sources
from residlab.data.fetch import fetch, path, status
from residlab.errors import ResidlabError


def test_a_fetch_leaves_the_allowed_members_and_a_manifest(bench, tiny, capsys):
    bench.serve_from_disk()
    (fetched,) = fetch(["tiny"], cache=bench.cache)
    assert bench.left() == {"tiny-1.0"}
    folder = bench.cache / "tiny-1.0"
    assert fetched.folder == path("tiny", cache=bench.cache) == folder
    files = {file.relative_to(folder).as_posix(): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    said = json.loads(files.pop("manifest.json"))
    assert files == {"tiny_pkg/a.txt": b"alpha\n" * 50, "tiny_pkg/b.txt": b"beta\n"}
    assert said == {
        "name": "tiny",
        "version": "1.0",
        "wheel_sha256": tiny.sha256,
        "files": {
            name: {"size": len(content), "sha256": sha256(content).hexdigest()} for name, content in files.items()
        },
    }
    assert capsys.readouterr().err == f"residlab: tiny: fetched {tiny.size} bytes with pip into {folder}\n"


def test_what_is_present_is_not_fetched_again_unless_forced(bench, tiny, index, capsys):
    fetch(cache=bench.cache)
    asked = len(index.asked)
    fetch(cache=bench.cache)
    assert len(index.asked) == asked
    assert capsys.readouterr().err.endswith(f"residlab: tiny: present in {bench.cache / 'tiny-1.0'}\n")
    fetch(cache=bench.cache, force=True)
    assert len(index.asked) > asked
    assert status("tiny", cache=bench.cache).state == "present"
    assert bench.left() == {"tiny-1.0"}


def test_what_is_present_needs_no_lock(bench, tiny, monkeypatch):
    fetch(cache=bench.cache, wheel=bench.wheels / tiny.wheel)
    monkeypatch.setattr(storage, "writing", lambda *_: pytest.fail("a cache may be read-only, or another may hold it"))
    fetch(cache=bench.cache)


def test_a_wheel_on_disk_needs_no_pip(bench, tiny, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    fetch(cache=bench.cache, wheel=bench.wheels / tiny.wheel)
    assert status("tiny", cache=bench.cache).state == "present"
    renamed = (bench.wheels / tiny.wheel).rename(bench.wheels / "renamed.zip")
    with pytest.raises(ResidlabError, match=r"renamed\.zip is not the name of a known wheel; say which .*: .*tiny"):
        fetch(cache=bench.cache, wheel=renamed)
    fetch(["tiny"], cache=bench.cache, wheel=renamed, force=True)


def test_a_wheel_on_disk_serves_one_data_set(bench, tiny):
    bench.add("other", {"other_pkg/a.txt": b"a"})
    with pytest.raises(ResidlabError, match="one wheel holds one data set, and 2 were named"):
        fetch(["tiny", "other"], cache=bench.cache, wheel=bench.wheels / tiny.wheel)


def test_an_unknown_name_lists_the_known(bench, tiny):
    for call in (lambda: fetch(["tinny"], cache=bench.cache), lambda: path("tinny"), lambda: status("tinny")):
        with pytest.raises(ResidlabError, match=r"^there is no data set 'tinny'; there are: tiny$"):
            call()


def test_what_was_not_fetched_names_the_command(bench, tiny):
    with pytest.raises(
        ResidlabError, match=rf"^tiny is not in {bench.cache}: run `residlab fetch tiny --cache-dir {bench.cache}`$"
    ):
        path("tiny", cache=bench.cache)


def _fails(bench, sentence, *names, **options):
    with pytest.raises(ResidlabError, match=sentence) as caught:
        fetch(names, cache=bench.cache, **options)
    assert "\n" not in str(caught.value)
    assert not bench.cache.exists() or bench.left() == set()


def test_another_hash_is_refused_by_pip(bench, tiny):
    bench.serve_from_disk()
    bench.register(dataclasses.replace(tiny, sha256="0" * 64))
    _fails(bench, rf"^cannot fetch tiny: what arrived as {tiny.wheel} has SHA-256 {tiny.sha256}, expected 0{{64}}: ")


def _damage(content: bytes, how: str) -> bytes:
    return {"flipped": content[:50] + bytes([content[50] ^ 1]) + content[51:], "cut": content[:-40]}.get(how, b"<html>")


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("flipped", r"is not the pinned wheel: it has \d+ bytes and SHA-256 [0-9a-f]{64}; expected tiny_pkg-1\.0-py3"),
        ("cut", r"is truncated: it has \d+ bytes; expected tiny_pkg-1\.0-py3-none-any\.whl, \d+ bytes, SHA-256 "),
        ("web page", r"is not a wheel: it is not a zip archive; expected tiny_pkg-1\.0-py3-none-any\.whl, "),
    ],
)
def test_another_file_on_disk_is_refused(bench, tiny, how, sentence):
    wheel = bench.wheels / tiny.wheel
    wheel.write_bytes(_damage(wheel.read_bytes(), how))
    _fails(bench, sentence, wheel=wheel)


def test_no_file_or_a_folder_on_disk(bench, tiny):
    _fails(bench, r"^there is no file .*/absent\.whl; expected tiny_pkg", "tiny", wheel=bench.root / "absent.whl")
    _fails(bench, r"^.*/wheels is a folder, not a wheel; expected tiny_pkg", "tiny", wheel=bench.wheels)


@pytest.mark.parametrize("how", ["dead port", "no index"])
def test_without_a_network_the_way_by_hand_is_named(bench, tiny, how):
    if how == "dead port":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        bench.serve_from(f"http://127.0.0.1:{port}/simple")
    _fails(bench, rf"^cannot fetch tiny: no package index .* residlab fetch tiny --from {tiny.wheel}$")


def test_an_index_without_the_version(bench, tiny, index):
    (bench.wheels / tiny.wheel).rename(bench.wheels / tiny.wheel.replace("1.0", "2.0"))
    _fails(bench, r"^cannot fetch tiny: the package index has tiny-pkg 2\.0 but no wheel of 1\.0$")


def test_a_broken_connection_is_resumed_or_explained(bench, tiny, index):
    index.cut = True
    if tuple(map(int, version("pip").split(".")[:2])) >= (25, 1):
        fetch(cache=bench.cache)
        assert status("tiny", cache=bench.cache).state == "present"
    else:
        _fails(bench, r"^cannot fetch tiny: what arrived as .* the connection broke, or the index holds another file")


def test_without_pip(bench, tiny, monkeypatch):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bench.root / "bare")], check=True)
    monkeypatch.setattr(sys, "executable", str(bench.root / "bare" / "bin" / "python"))
    _fails(bench, r"^cannot fetch tiny: .*/bare/bin/python has no pip; install it \(python -m ensurepip\), or, with")


def test_pip_on_a_full_disk(bench, tiny, monkeypatch):
    bench.serve_from_disk()
    shim = bench.root / "shim"
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(
        "import shutil\n"
        "def copy(*_, **__): raise OSError(28, 'No space left on device')\n"
        "shutil.copy = shutil.copyfile = shutil.copy2 = copy\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(shim))
    _fails(bench, r"^cannot fetch tiny: pip found no space left on the disk; ")


def test_our_writes_on_a_full_disk(bench, tiny, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(manifest.os, "fsync", full)
    _fails(bench, r"^cannot write to the cache folder .*: no space left on the disk", wheel=bench.wheels / tiny.wheel)


def test_a_write_refused_by_the_kernel(bench):
    resource = pytest.importorskip("resource")
    big = bench.add("big", {"big_pkg/a.txt": bytes(200_000)})
    refused = bench.run(
        "--from",
        str(bench.wheels / big.wheel),
        "--cache-dir",
        str(bench.cache),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    assert refused.returncode == 1
    assert refused.stderr == f"residlab: error: cannot write to the cache folder {bench.cache}: File too large\n"
    assert bench.left() == set()


def test_a_cache_that_may_not_be_written(bench, tiny):
    with tempfile.TemporaryDirectory() as folder:  # not in tmp_path, into which no other user may look
        Path(folder).chmod(0o555)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            for cache in (Path(folder), Path(folder) / "deeper"):
                with pytest.raises(
                    ResidlabError, match=rf"^cannot write to the cache folder {cache}: Permission denied; "
                ):
                    fetch(cache=cache)
        finally:
            if root:
                os.seteuid(0)


def test_a_cache_path_that_is_a_file(bench, tiny):
    bench.cache.write_text("I was here first")
    for cache in (bench.cache, bench.cache / "deeper"):
        with pytest.raises(ResidlabError, match=rf"^cannot write to the cache folder {cache}: {bench.cache} is a file"):
            fetch(cache=cache)
    assert bench.cache.read_text() == "I was here first"


CORRUPTIONS = {
    "flipped": (lambda folder: (folder / "tiny_pkg/b.txt").write_bytes(b"Beta\n"), r"b\.txt has another SHA-256"),
    "cut": (lambda folder: (folder / "tiny_pkg/b.txt").write_bytes(b"be"), r"b\.txt has 2 bytes, expected 5"),
    "removed": (lambda folder: (folder / "tiny_pkg/b.txt").unlink(), r"b\.txt is missing"),
    "no manifest": (lambda folder: (folder / "manifest.json").unlink(), r"manifest\.json is missing"),
    "bad manifest": (lambda folder: (folder / "manifest.json").write_text("{}"), r"manifest\.json cannot be read"),
}


@pytest.mark.parametrize("how", CORRUPTIONS)
def test_a_damaged_file_is_named_and_a_fetch_repairs_it(bench, tiny, how, capsys):
    wheel = bench.wheels / tiny.wheel
    damage, sentence = CORRUPTIONS[how]
    fetch(cache=bench.cache, wheel=wheel)
    folder = path("tiny", cache=bench.cache)
    damage(folder)
    with pytest.raises(ResidlabError, match=sentence) as caught:
        path("tiny", cache=bench.cache)
    assert str(caught.value).endswith(f": run `residlab fetch --force tiny --cache-dir {bench.cache}`")
    fetch(cache=bench.cache, wheel=wheel)
    assert re.search(rf"tiny: damaged, .*{sentence}.*; fetching it again", capsys.readouterr().err)
    assert path("tiny", cache=bench.cache) == folder
    assert bench.left() == {"tiny-1.0"}


def test_a_changed_pin_makes_the_old_files_another_data_set(bench, tiny):
    fetch(cache=bench.cache, wheel=bench.wheels / tiny.wheel)
    bench.register(dataclasses.replace(tiny, sha256="0" * 64))
    with pytest.raises(ResidlabError, match="is of another wheel_sha256"):
        path("tiny", cache=bench.cache)


def test_a_file_is_hashed_once_in_a_process(bench, tiny, monkeypatch):
    fetch(cache=bench.cache, wheel=bench.wheels / tiny.wheel)
    path("tiny", cache=bench.cache)
    monkeypatch.setattr(manifest, "sha256", lambda file: pytest.fail(f"{file} was hashed again"))
    path("tiny", cache=bench.cache)


def test_a_failed_replacement_keeps_the_old_files(bench, tiny, monkeypatch):
    fetch(cache=bench.cache, wheel=bench.wheels / tiny.wheel)
    rename = Path.rename

    def refuse(self: Path, target: Path) -> Path:
        if self.parent.name.startswith(".staging") and self.name == "tiny-1.0":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ResidlabError, match="Input/output error"):
        fetch(cache=bench.cache, wheel=bench.wheels / tiny.wheel, force=True)
    assert status("tiny", cache=bench.cache).state == "present"
    assert bench.left() == {"tiny-1.0"}


def test_what_a_killed_process_left_is_removed(bench, tiny):
    (bench.cache / ".staging-of-the-dead").mkdir(parents=True)
    (bench.cache / ".staging-of-the-dead" / "half.whl").write_bytes(b"half")
    fetch(cache=bench.cache, wheel=bench.wheels / tiny.wheel)
    assert bench.left() == {"tiny-1.0"}


def test_an_interruption_keeps_what_is_finished_and_ends_pip(bench, tiny, index, started):
    bench.add("slow", {"slow_pkg/a.txt": os.urandom(400_000)})
    fetch(["tiny"], cache=bench.cache)
    index.seconds = 30
    index.began.clear()
    process = started(bench.command("--cache-dir", str(bench.cache)))
    assert index.began.wait(20)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "residlab: interrupted; what was finished is kept, nothing half-written is left"
    assert "Traceback" not in said
    assert index.hung_up.wait(5), "pip was still downloading"
    assert status("tiny", cache=bench.cache).state == "present"
    assert bench.left() == {"tiny-1.0"}


def test_two_fetches_at_once_wait_for_each_other(bench, tiny, index, started):
    index.go_on.clear()
    first = started(bench.command("--cache-dir", str(bench.cache)))
    assert index.began.wait(20)
    second = started(bench.command("--cache-dir", str(bench.cache)))
    waiting = second.stderr.readline()
    index.go_on.set()
    said = [process.communicate(timeout=30)[1] for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert waiting == f"residlab: waiting for another process (residlab fetch tiny, pid {first.pid})\n"
    assert said[1] == f"residlab: tiny: present in {bench.cache / 'tiny-1.0'}\n"
    assert sum(asked.endswith(".whl") for asked in index.asked) == 1


def test_a_terminal_sees_bytes_and_rate(bench, tiny, index, monkeypatch):
    bench.add("slow", {"slow_pkg/a.txt": os.urandom(6_000_000)})  # pip writes blocks of 262 kB: many are seen
    index.seconds = 2
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(bench.command("slow", "--cache-dir", str(bench.cache)), stderr=theirs)
    os.close(theirs)
    seen = b""
    while True:
        try:
            block = os.read(ours, 4096)
        except OSError:  # Linux reports the end of a terminal as an error
            break
        if not block:
            break
        seen += block
    os.close(ours)
    assert process.wait(20) == 0
    shown = seen.decode()
    assert "fetch slow" in shown
    done = {
        int(kilobytes)
        for kilobytes in re.findall(r"(\d+)[./\d]* ?kB|(\d+)/", shown)
        for kilobytes in kilobytes
        if kilobytes
    }
    assert len(done) > 2, shown
    assert re.search(r"[kM]?B/s", shown), shown


def test_the_real_registry_is_consistent():
    for name, entry in sources.DATA_SETS.items():
        assert entry.name == name
        assert entry.wheel == f"{entry.package.replace('-', '_')}-{entry.version}-py3-none-any.whl"
        assert re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        assert entry.licence
        assert entry.credit
        assert all(member.pattern.startswith(entry.package.replace("-", "_") + "/") for member in entry.members)
