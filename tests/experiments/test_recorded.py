"""The records that come with the book."""

import pytest

from residlab.errors import ResidlabError
from residlab.experiments import recorded as module
from residlab.experiments.record import Record, Records
from residlab.experiments.recorded import found, recorded, results_folder


def test_results_are_those_of_this_checkout():
    assert (results_folder() / "README.md").is_file()


def test_an_installation_without_a_checkout_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(module.residlab, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(ResidlabError, match="install residlab from a clone"):
        results_folder()


def test_how_to_make_a_recorded_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "results_folder", lambda: tmp_path / "results")
    Records(tmp_path / "results" / "residual-free-gpu.jsonl").add(Record("residual-free/main", "ab", {}, 0, {}))
    assert "residlab run residual-free --profile gpu --stage main --results FILE" in module.recipe("ab")
    assert "residual-free-gpu.jsonl" in module.recipe("ab")
    assert module.recipe("cd") is None

    def nowhere():
        raise ResidlabError("no checkout")

    monkeypatch.setattr(module, "results_folder", nowhere)
    assert module.recipe("ab") is None


def test_records_by_stage_and_none(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "results_folder", lambda: tmp_path / "results")
    assert recorded("bhyt-depth", "gpu") == []
    with pytest.raises(ResidlabError, match="is not there: residlab run bhyt-depth --profile gpu makes it"):
        found("bhyt-depth", "gpu")
    with pytest.raises(ResidlabError, match="experiment must be one of"):
        found("bhyt")
    Records(tmp_path / "results" / "bhyt-depth-gpu.jsonl").add(
        Record("bhyt-depth/main", "0", {}, 0, {"bits_per_byte": 1.5})
    )
    (one,) = found("bhyt-depth", "gpu").stage("main")
    assert one.metrics == {"bits_per_byte": 1.5}
    assert found("bhyt-depth", "gpu").stage("depth") == []
    assert [record.hash for record in recorded("bhyt-depth", "gpu")] == ["0"]
