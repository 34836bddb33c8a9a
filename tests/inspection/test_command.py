"""``residlab inspect`` as it is typed: what it writes, what it says, with which code it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from residlab.cli import main
from residlab.inspection import inspect as inspecting
from residlab.inspection.command import summary


@pytest.fixture(scope="module")
def model(save, tmp_path_factory):
    return save(tmp_path_factory.mktemp("model"))


def test_all_of_it(model, tmp_path, capsys):
    report, numbers = tmp_path / "out.html", tmp_path / "out.json"
    code = main(["inspect", str(model), "--report", str(report), "--json", str(numbers), "--tokens", "64"])
    assert code == 0
    said = capsys.readouterr()
    assert said.err.startswith("residlab: this takes about ")
    assert f"The report: {report}" in said.out.splitlines()
    assert max(map(len, said.out.replace(str(tmp_path), "").splitlines())) <= 80
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out.html", "out.json"]
    values = json.loads(numbers.read_text())
    assert f"{values['nats']:.2f} nats per token" in said.out
    assert f"{values['nats']:.2f} nats per token" in " ".join(report.read_text().split())


def test_without_a_report(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = tmp_path / "own.txt"
    own.write_text("One morning the river was gone. " * 4)
    assert main(["inspect", str(model), "--text", str(own), "--tokens", "128"]) == 0
    said = capsys.readouterr().out
    assert "128 tokens of own.txt" in said
    assert "--report FILE.html" in said
    assert list(tmp_path.iterdir()) == [own]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("", "--report .* is a folder: name a file"),
        ("none/out.html", "--report .*: there is no folder "),
    ],
)
def test_a_target_is_checked_first(model, tmp_path, capsys, monkeypatch, target, message):
    import re

    monkeypatch.setattr(inspecting, "inspect", lambda *a, **k: pytest.fail("the model was read"))
    assert main(["inspect", str(model), "--report", str(tmp_path / target)]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_one_file_for_two(model, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["inspect", str(model), "--report", out, "--json", out]) == 1
    assert "are one file" in capsys.readouterr().err


def test_what_is_read_is_not_written_over(save, tmp_path, capsys):
    folder = save(tmp_path / "model")
    text = tmp_path / "essay.txt"
    text.write_text("One morning the river was gone. " * 4)
    before = {file: file.read_bytes() for file in [text, *folder.iterdir()]}
    for option in ("--report", "--json"):
        assert main(["inspect", str(folder), "--text", str(text), option, str(text)]) == 1
        assert f"{option} {text} is the text that is read" in capsys.readouterr().err
        assert main(["inspect", str(folder), option, str(folder / "config.json")]) == 1
        assert "is a file of the model" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in before} == before


def test_files_of_the_hubs_cache_are_not_written_over(save, tmp_path, capsys):
    """There, the files of the folder are links into a folder of blobs."""
    folder, blobs = save(tmp_path / "snapshots"), tmp_path / "blobs"
    blobs.mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        file.symlink_to(file.rename(blobs / str(number)))
    before = {file: file.read_bytes() for file in blobs.iterdir()}
    for option in ("--report", "--json"):
        for target in (folder / "config.json", (folder / "config.json").resolve()):
            assert main(["inspect", str(folder), option, str(target), "--tokens", "32"]) == 1
            assert "is a file of the model" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in blobs.iterdir()} == before


def test_a_name_that_is_no_text(model, tmp_path, capsys):
    own = tmp_path / "bad\udcff.txt"
    own.write_text("One morning the river was gone. " * 4)
    report, numbers = tmp_path / "out.html", tmp_path / "out.json"
    arguments = ["inspect", str(model), "--text", str(own), "--report", str(report), "--json", str(numbers)]
    assert main([*arguments, "--tokens", "32"]) == 0
    assert r"bad\udcff.txt" in capsys.readouterr().out
    assert r"bad\udcff.txt" in report.read_text(encoding="utf-8")
    assert json.loads(numbers.read_text(encoding="utf-8"))["text"]["name"] == own.name


def test_a_device_stays_one(model, tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert main(["inspect", str(model), "--json", str(pipe), "--tokens", "32"]) == 0
        assert json.loads(reader.communicate()[0])["text"]["tokens"] == 32
    assert pipe.is_fifo()


def test_slips_are_told_before_anything_is_read(tmp_path, capsys):
    (tmp_path / "config.json").write_text("no model")
    for option, value in (("--max-memory", "lots"), ("--max-memory", "0"), ("--text", "nowhere"), ("--tokens", "-1")):
        assert main(["inspect", str(tmp_path), option, value]) == 1
        assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-memory", "1MB"], "but --max-memory 1MB allows 1 MB: nothing was loaded"),
        (["--max-memory", "much"], "--max-memory must be like 3GB"),
        (["--max-memory", f"1{'0' * 400}GB"], "--max-memory must be like 3GB"),
        (["--tokens", "3"], "--tokens must be >= 16; got 3"),
        (["--text", "nowhere.txt"], "--text nowhere.txt cannot be read"),
    ],
)
def test_errors_leave_nothing(model, tmp_path, capsys, arguments, message):
    old = tmp_path / "out.html"
    old.write_text("old")
    assert main(["inspect", str(model), "--report", str(old), *arguments]) == 1
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert (old.read_text(), [file.name for file in tmp_path.iterdir()]) == ("old", ["out.html"])


def test_no_path_at_all(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["inspect"])
    assert end.value.code == 2


def test_help_loads_neither_torch_nor_transformers():
    code = (
        "import sys; from residlab.cli import main\n"
        "try: main(['inspect', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'plotly'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_it_needs_no_plotly(model, tmp_path):
    code = (
        "import sys; sys.modules['plotly'] = None\n"
        "from residlab.cli import main\n"
        f"sys.exit(main(['inspect', {str(model)!r}, '--report', {str(tmp_path / 'out.html')!r}, '--tokens', '32']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_the_summary_has_each_measure(model):
    seen = inspecting.inspect(model, tokens=64)
    lines = summary(seen).splitlines()
    assert max(map(len, lines)) <= 80
    for title in (
        "Stream by layer",
        "Massive activations",
        "Attention sinks",
        "Kurtosis",
        "Crest factor",
        "SQNR",
        "Error",
    ):
        assert any(line.startswith(title) for line in lines)
