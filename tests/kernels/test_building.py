"""How a C++ library is built, kept, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from residlab.kernels import building

SOURCE = 'extern "C" int residlab_answer() { return ANSWER; }'


@pytest.fixture
def kept(compiled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(building, "_cache_dir", lambda: tmp_path)
    return tmp_path


def test_a_library_is_built_once_for_each_source_and_option(kept: Path) -> None:
    for answer in (1, 2, 1):
        assert building.load("answer", SOURCE, (f"-DANSWER={answer}",)).residlab_answer() == answer
    assert len(list(kept.iterdir())) == 2
    assert all(path.name.startswith("answer-") and path.suffix == ".so" for path in kept.iterdir())


def test_what_the_compiler_says_is_passed_on(kept: Path) -> None:
    with pytest.raises(building.BuildError, match=r"(?s)failed: .*ANSWER"):
        building.load("answer", SOURCE)
    assert not list(kept.iterdir())


def test_a_broken_file_is_named(kept: Path) -> None:
    building.load("answer", SOURCE, ("-DANSWER=3",))
    (built,) = kept.iterdir()
    broken = kept / f"other-{built.name.partition('-')[2]}"
    broken.write_bytes(b"no library")
    with pytest.raises(building.BuildError, match=r"other-.*\.so does not load .* delete it"):
        building.load("other", SOURCE, ("-DANSWER=3",))
