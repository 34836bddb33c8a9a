"""The cache folder: which it is, and how it is written."""

import subprocess
import sys
from pathlib import Path

import pytest

from residlab.data import cache, locking
from residlab.errors import ResidlabError


@pytest.mark.parametrize("name", ["plain", 'with "quotes" and \\', "été 日本 😀", "tab\tand\x7fdel", "line\nbreak"])
def test_the_chosen_folder_is_remembered_exactly(tmp_path, name):
    cache.remember_cache_dir(tmp_path / name)
    assert cache.cache_dir() == (tmp_path / name).resolve()
    cache.remember_cache_dir(None)
    assert cache.cache_dir() == cache.default_cache_dir()
    assert list(cache.settings_file().parent.iterdir()) == []


def test_the_default_lies_in_the_readers_home(tmp_path):
    assert cache.cache_dir().is_relative_to(tmp_path / "home")
    assert cache.settings_file().is_relative_to(tmp_path / "home")
    cache.remember_cache_dir(None)  # nothing to forget is no error


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    with pytest.raises(ResidlabError, match="its name is not UTF-8"):
        cache.remember_cache_dir(tmp_path / "bad\udc80")
    assert cache.cache_dir() == cache.default_cache_dir()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("cache_dir = ", "cannot read the settings in .*settings.toml .*: correct the file, or delete it"),
        ("cache_dir = 3", "cache_dir must be an absolute path in quotes, not 3"),
        ("cache_dir = 'here'", "cache_dir must be an absolute path in quotes, not 'here'"),
    ],
)
def test_broken_settings_name_their_file(content, sentence):
    cache.settings_file().parent.mkdir(parents=True)
    cache.settings_file().write_text(content)
    with pytest.raises(ResidlabError, match=sentence):
        cache.cache_dir()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "file"
    cache.write_atomic(file, b"old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        cache.write_atomic(file, b"new")
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_staging_is_removed_and_the_lock_released_after_a_failure(tmp_path):
    def fail() -> None:
        with cache.writing(tmp_path, "one") as staging:
            (staging / "deep").mkdir()
            (staging / "deep" / "file").write_bytes(b"half")
            raise KeyError("one")

    with pytest.raises(KeyError):
        fail()
    with cache.writing(tmp_path, "two"):
        assert {entry.name for entry in tmp_path.iterdir()} >= {".lock", ".lock-holder"}
    assert {entry.name for entry in tmp_path.iterdir()} == {".lock"}


def test_who_holds_the_lock_is_unknown_until_it_says_so(tmp_path):
    assert locking._describe(tmp_path / "absent") == "another residlab process"
    (tmp_path / "garbage").write_text("[]")
    assert locking._describe(tmp_path / "garbage") == "another residlab process"


def test_the_data_room_loads_no_torch():
    source = Path(cache.__file__).parent
    modules = [f"residlab.data.{file.stem}" for file in source.glob("*.py") if file.stem != "__init__"]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
