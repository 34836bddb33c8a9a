"""A small text, and files that describe runs on it."""

import pytest
import yaml


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(30):
        (folder / f"{number:02}.txt").write_text(f"Document {number} says that {number} follows {number - 1}. " * 3)
    return folder


@pytest.fixture
def write(tmp_path, text):
    def write_file(values, name="sweep.yml"):
        values.setdefault("base", {}).setdefault("corpus", str(text))
        file = tmp_path / name
        file.write_text(yaml.safe_dump(values))
        return file

    return write_file
