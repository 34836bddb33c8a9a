"""The packaged text and its windows."""

from __future__ import annotations

import pytest
import torch

from residlab.errors import ResidlabError
from residlab.inspection import text as texts

from .conftest import byte_tokenizer


def test_the_packaged_text_is_long_enough_for_any_tokenizer():
    text = texts.packaged_text()
    assert text.isascii()
    assert len(text) > 5.5 * texts.TOKENS  # a vocabulary of 256,000 has about 4.9 letters to an English token
    assert len(set(text.split("\n\n"))) == len(text.split("\n\n")) == 10


@pytest.mark.parametrize(
    ("tokens", "context", "shape"),
    [
        (2048, 8192, (4, 512)),
        (2048, 1024, (4, 512)),
        (2048, 64, (32, 64)),
        (100, None, (1, 100)),
        (700, None, (1, 512)),
    ],
)
def test_windows(tokens, context, shape):
    assert texts.window_shape(tokens, context) == shape


def test_too_little():
    with pytest.raises(ResidlabError, match="--tokens must be >= 16; got 15"):
        texts.window_shape(15, None)
    with pytest.raises(ResidlabError, match="context is 8 tokens"):
        texts.window_shape(2048, 8)
    with pytest.raises(ResidlabError, match="short has 5 tokens: at least 16 are needed"):
        texts.read("short", "short", byte_tokenizer(False), (1, 32), 300)


def test_windows_follow_each_other():
    text = texts.packaged_text()
    tokenizer = byte_tokenizer(False)
    reading = texts.read(text, "it", tokenizer, (3, 20), 300)
    assert reading.ids.shape == (3, 20)
    assert reading.begin == ""
    assert tokenizer.decode(reading.ids.flatten()) == text[:60]


def test_each_window_begins_as_the_tokenizer_begins():
    text = texts.packaged_text()
    tokenizer = byte_tokenizer(True)
    reading = texts.read(text, "it", tokenizer, (3, 20), 300)
    assert reading.begin == "<s>"
    assert torch.equal(reading.ids[:, 0], torch.full((3,), 256))
    assert tokenizer.decode(reading.ids[:, 1:].flatten()) == text[:57]


def test_a_text_that_ends_gives_fewer_windows():
    assert texts.read("x" * 70, "it", byte_tokenizer(False), (4, 20), 300).ids.shape == (3, 20)
    assert texts.read("x" * 18, "it", byte_tokenizer(False), (4, 20), 300).ids.shape == (1, 18)


def test_a_tokenizer_of_another_model():
    with pytest.raises(ResidlabError, match="the tokenizer gives id 256, but the model's vocabulary is 200"):
        texts.read("~" * 30, "it", byte_tokenizer(True), (1, 20), 200)


def test_own_text(tmp_path):
    (tmp_path / "own.txt").write_text("grüß", encoding="utf-8")
    assert texts.own_text(tmp_path / "own.txt") == "grüß"
    (tmp_path / "own.txt").write_bytes(b"\xff")
    for name in ("own.txt", "none.txt"):
        with pytest.raises(ResidlabError, match=f"--text .*{name} cannot be read"):
            texts.own_text(tmp_path / name)
