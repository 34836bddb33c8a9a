"""Records: appended once, found again, whole after a crash."""

import json
import subprocess
import sys

import pytest

from residlab.errors import ResidlabError
from residlab.experiments.record import Record, Records, commit


def make(number=0, experiment="e", **metrics):
    return Record(experiment, f"{number:016x}", {"steps": number}, 0, metrics or {"loss": 1.5})


def test_appended_and_found(tmp_path):
    records = Records(tmp_path / "a" / "runs.jsonl")
    assert list(records) == []
    first, second = make(1), make(2)
    assert records.add(first)
    assert records.add(second)
    assert list(records) == [first, second]
    assert records.find("e", second.hash) == second
    assert records.find("f", second.hash) is None


def test_a_configuration_has_one_record_an_experiment(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    assert records.add(make(1, loss=1.0))
    assert not records.add(make(1, loss=2.0))
    assert records.add(make(1, experiment="f"))
    assert [record.metrics["loss"] for record in records] == [1.0, 1.5]


def test_a_line_that_was_cut_short_is_left_out_and_goes(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    records.add(make(1))
    with records.file.open("a") as stream:
        stream.write('{"experiment": "e", "ha')
    assert len(list(records)) == 1
    records.add(make(2))
    assert [record.hash for record in records] == [make(1).hash, make(2).hash]


def test_a_last_line_that_lacks_only_its_end_is_kept(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    records.add(make(1))
    records.file.write_text(records.file.read_text().rstrip())
    records.add(make(2))
    assert [record.hash for record in records] == [make(1).hash, make(2).hash]


def test_a_line_that_is_no_record_is_named(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    records.file.write_text('{"experiment": "e"}\n')
    with pytest.raises(ResidlabError, match="line 1, is no record"):
        list(records)


def test_what_is_not_json_is_refused(tmp_path):
    records = Records(tmp_path / "runs.jsonl")
    with pytest.raises(ResidlabError, match="is not JSON"):
        records.add(make(1, loss=float("nan")))
    assert not records.file.exists()


def test_a_record_says_where_it_comes_from():
    record = make()
    assert record.versions["torch"]
    assert record.hardware["cores"] >= 1
    assert record.time.endswith("+00:00")
    assert commit() is None or len(commit().rstrip("+")) == 40


WRITER = """
import sys
from pathlib import Path
from residlab.experiments.record import Record, Records
records = Records(Path(sys.argv[1]))
for number in range(15):
    records.add(Record("e", f"{number}", {}, int(sys.argv[2]), {}, {}, {}, None, "now"))
"""


def test_several_processes_append_at_once(tmp_path):
    file = tmp_path / "runs.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(file), str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted(int(line["hash"]) for line in lines) == list(range(15))


def test_a_record_says_when_its_source_differs_from_the_commit(tmp_path, monkeypatch):
    package = tmp_path / "src" / "residlab"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = subprocess.run(
            ["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    monkeypatch.setattr("residlab.__file__", str(package / "__init__.py"))
    head = git("rev-parse", "HEAD")
    assert commit() == head
    (tmp_path / "untracked.txt").write_text("no matter")
    assert commit() == head
    (package / "__init__.py").write_text("x = 1")
    assert commit() == f"{head}+"


@pytest.mark.parametrize("content", ["a note of one line", "Zeile äöü", "{", '{"experimen', ""])
def test_another_file_without_a_last_newline_is_not_destroyed(tmp_path, content):
    records = Records(tmp_path / "notes.txt")
    records.file.write_text(content, encoding="utf-8")
    if '{"experiment"'.startswith(content):  # what a crash may leave
        assert list(records) == []
        return
    for use in (list, lambda each: each.add(make(1))):
        with pytest.raises(ResidlabError, match=r"notes\.txt, line 1, is no record"):
            use(records)
    assert records.file.read_text(encoding="utf-8") == content
