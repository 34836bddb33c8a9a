"""The cache folder: which it is, and how it is written."""

import os
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


def test_what_is_no_file_is_written_to_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        cache.write_atomic(pipe, b"new")
        assert reader.communicate()[0] == b"new"
    assert pipe.is_fifo()
    with pytest.raises(ResidlabError, match=r"is a folder: name a file$"):
        cache.write_atomic(tmp_path, b"new")
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_deleted_file_that_is_open_is_written_to(tmp_path):
    with (tmp_path / "gone").open("w+b") as stream:
        (tmp_path / "gone").unlink()
        own = Path(f"/dev/fd/{stream.fileno()}")
        if not own.exists():
            pytest.skip("there is no /dev/fd")
        cache.write_atomic(own, b"new")
        assert stream.read() == b"new"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("old", [b"old", None])
def test_a_link_stays_a_link(tmp_path, old):
    (tmp_path / "far").mkdir()
    file, link = tmp_path / "far" / "file", tmp_path / "link"
    if old is not None:
        file.write_bytes(old)
    link.symlink_to(file)
    cache.write_atomic(link, b"new")
    assert link.is_symlink()
    assert file.read_bytes() == b"new"
    assert [entry.name for entry in file.parent.iterdir()] == ["file"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_follows_the_mask_and_an_old_one_keeps_its_mode(tmp_path, mask, mode):
    old = tmp_path / "old"
    old.touch()
    old.chmod(0o640)
    before = os.umask(mask)
    try:
        for file in (old, tmp_path / "new"):
            cache.write_atomic(file, b"new")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o7777 for name in ("old", "new")] == [0o640, mode]


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    file = tmp_path / ("n" * 255)
    cache.write_atomic(file, b"new")
    assert file.read_bytes() == b"new"


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
