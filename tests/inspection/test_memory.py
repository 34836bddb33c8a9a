"""Memory: the count by hand, sizes as they are written, refusal before anything is loaded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.errors import ResidlabError
from residlab.inspection import folder as folders
from residlab.inspection import memory
from residlab.inspection.inspect import inspect


def test_the_count_is_the_formula(save, tmp_path):
    found = folders.read_folder(save(tmp_path / "model"))
    needed = memory.memory_needed(found, (2, 64), 16)
    f, d, V, h, L = 48, 32, 260, 4, 3
    assert needed.weights == 4 * found.parameters
    assert needed.reading == 128 * (40 * f + 72 * d) + 40 * 2 * h * 64**2
    assert needed.predictions == 16 * 64 * V
    assert needed.rounding == 16 * (48 * V + 24 * (L + 1) * d) + 20 * V * d
    assert needed.peak == memory.LIBRARIES + needed.weights + max(needed.reading, needed.predictions, needed.rounding)


@pytest.mark.parametrize(
    ("text", "size"),
    [("3GB", 3 * 10**9), ("500 mb", 5 * 10**8), ("2GiB", 2**31), ("1.5g", 15 * 10**8), ("4096", 4096), (".5k", 500)],
)
def test_sizes(text, size):
    assert memory.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "3 apples", "1e9", "nan", "0.1"])
def test_what_is_no_size(text):
    with pytest.raises(ResidlabError, match="--max-memory must be like 3GB, 500MB or 2GiB; got "):
        memory.parse_bytes(text)


@given(st.integers(1, 10**15))
def test_a_plain_number_is_bytes(size):
    assert memory.parse_bytes(str(size)) == memory.parse_bytes(f"{size}B") == size


def test_a_model_that_is_too_large_is_not_loaded(save, tmp_path, monkeypatch):
    folder = save(tmp_path / "model")
    for name in ("load", "check_weights", "load_tokenizer"):
        monkeypatch.setattr(folders, name, lambda *a, name=name: pytest.fail(f"{name} was called"))
    told: list[memory.Memory] = []
    message = r"^the model needs about .* of memory .*, but --max-memory 300MB allows 300 MB: nothing was loaded"
    with pytest.raises(ResidlabError, match=message):
        inspect(folder, tokens=32, max_memory="300MB", tell_memory=told.append)
    assert len(told) == 1


def test_the_default_is_three_quarters_of_what_is_free(monkeypatch):
    needed = memory.Memory(weights=6 * 10**8, reading=0, predictions=0, rounding=0)  # 1 GB with the libraries
    monkeypatch.setattr(memory, "free_memory", lambda: 1_334_000_000)
    memory.check_memory(needed, None)
    monkeypatch.setattr(memory, "free_memory", lambda: 1_333_000_000)
    with pytest.raises(ResidlabError, match=r"75% of the 1\.3 GB that are free allows 1000 MB"):
        memory.check_memory(needed, None)
    memory.check_memory(needed, "1GB")
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    memory.check_memory(needed, None)


def test_the_machine_has_some():
    import psutil

    free = memory.free_memory()
    assert free is not None
    assert 0 <= free <= psutil.virtual_memory().total
