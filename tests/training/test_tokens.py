"""The token cache: what it holds, that it is made once, and that nothing half-made is left."""

import errno
import hashlib
import json
import math
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.data.fetch import status
from residlab.errors import ResidlabError
from residlab.training import tokens
from residlab.training.corpus import corpus, corpus_of
from residlab.training.tokenizers import BPETokenizer, ByteTokenizer, tokenizer_for
from residlab.training.tokens import bits_per_byte, token_file, tokenized

TEXTS = [f"Document {i}: " + "ä residual stream. " * (i % 5) for i in range(60)] + ["twice"] * 2
BYTES = ByteTokenizer()


@pytest.fixture
def texts():
    return corpus_of("Some Texts!", TEXTS, validation=0.2)


def left(cache):
    return {entry.name for entry in cache.iterdir()} - {".lock"}


@pytest.mark.parametrize("tokenizer", [BYTES, BPETokenizer.train(TEXTS, 300)], ids=lambda one: one.name)
def test_each_split_is_its_documents_in_the_order_of_their_hashes(tmp_path, texts, tokenizer, monkeypatch):
    monkeypatch.setattr(tokens, "_TOGETHER", 100)
    found = tokenized(texts, tokenizer, cache=tmp_path)
    for file, split in ((found.train, "train"), (found.validation, "validation")):
        held = sorted(
            (document.text for document in texts.documents(split)), key=lambda t: hashlib.sha256(t.encode()).digest()
        )
        expected = [one for text in held for one in [*tokenizer.encode(text).tolist(), tokenizer.end]]
        assert file.ids.tolist() == expected
        assert file.name == f"Some Texts!, {split}"
        assert file.documents == len(held) == (file.ids == file.end).sum()
        assert file.bytes == sum(len(text.encode()) for text in held) == file.byte_lengths[file.ids].sum()
        assert isinstance(file.ids, np.memmap)
        assert not file.ids.flags.writeable
        assert file.ids.dtype == np.uint16
        np.testing.assert_array_equal(file.ids, token_file("x", held, tokenizer).ids)
    assert found.train.documents + found.validation.documents == len(TEXTS)
    assert found.tokenizer is tokenizer


def test_the_order_of_the_source_plays_no_role(tmp_path, texts):
    turned = corpus_of("turned", TEXTS[::-1], validation=0.2)
    one, two = tokenized(texts, BYTES, cache=tmp_path), tokenized(turned, BYTES, cache=tmp_path)
    assert one.train.fingerprint == two.train.fingerprint
    assert one.validation.fingerprint == two.validation.fingerprint != one.train.fingerprint


def test_it_is_made_once_for_a_corpus_a_split_and_a_tokenizer(tmp_path, texts, monkeypatch):
    tokenized(texts, BYTES, cache=tmp_path)
    tokenized(texts, BPETokenizer.train(TEXTS, 300), cache=tmp_path)
    tokenized(corpus_of("Some Texts!", TEXTS, validation=0.3), BYTES, cache=tmp_path)
    assert len(left(tmp_path)) == 3
    assert all(name.startswith("tokens-some-texts-b") for name in left(tmp_path))
    monkeypatch.setattr(tokens, "_ensure", None)
    again = tokenized(texts, ByteTokenizer(), cache=tmp_path)
    folder = _folder(tmp_path, again)
    counts = json.loads((folder / "counts.json").read_text())
    assert counts["train"] == {
        "tokens": len(again.train),
        "bytes": again.train.bytes,
        "documents": again.train.documents,
    }
    assert json.loads((folder / "manifest.json").read_text())["files"]["train.npy"]["sha256"] == again.train.fingerprint


def _folder(cache, found):
    return next(folder for folder in cache.glob("tokens-*") if str(found.train.ids.filename).startswith(str(folder)))


def _truncate(file):
    file.write_bytes(file.read_bytes()[:-2])


def _flip(file):
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


DAMAGE = {
    "has [0-9]+ bytes, expected [0-9]+": _truncate,
    "has another SHA-256 than the manifest says": _flip,
    "is missing": lambda file: file.unlink(),
    "cannot be read": lambda file: (file.parent / "manifest.json").write_text("{"),
}


@pytest.mark.parametrize("said", DAMAGE)
@pytest.mark.parametrize("name", ["train.npy", "validation.npy", "counts.json"])
def test_damage_is_told_and_made_good(tmp_path, texts, said, name, capsys):
    before = tokenized(texts, BYTES, cache=tmp_path)
    DAMAGE[said](_folder(tmp_path, before) / name)
    after = tokenized(texts, BYTES, cache=tmp_path)
    assert after.train.fingerprint == before.train.fingerprint
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "damaged" in message
    assert "making it again" in message
    assert len(left(tmp_path)) == 1


class Interrupted(ByteTokenizer):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def encode_batch(self, texts):
        raise self.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), ResidlabError("x")], ids=repr)
def test_an_interruption_leaves_nothing(tmp_path, texts, error):
    with pytest.raises(type(error)):
        tokenized(texts, Interrupted(error), cache=tmp_path)
    assert not left(tmp_path)
    tokenized(texts, BYTES, cache=tmp_path)


def test_a_full_disk_is_one_sentence(tmp_path, texts, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array_header_1_0", full)
    with pytest.raises(ResidlabError, match=r"cannot write to the cache folder .*: no space left on the disk"):
        tokenized(texts, BYTES, cache=tmp_path)
    assert not left(tmp_path)


def test_an_unreadable_corpus_leaves_nothing(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\ftwo\fthree\f\xff")
    with pytest.raises(ResidlabError, match="not UTF-8: byte 0xff at offset 14"):
        tokenized(corpus(tmp_path / "a.txt"), BYTES, cache=tmp_path / "cache")
    assert not left(tmp_path / "cache")
    with pytest.raises(ResidlabError, match="none is empty"):
        tokenized(corpus_of("none", [" "]), BYTES, cache=tmp_path / "cache")


def test_documents_are_held_a_few_at_a_time(tmp_path, monkeypatch):
    monkeypatch.setattr(tokens, "_TOGETHER", 1000)
    monkeypatch.setattr(tokens, "_AT_MOST", 7)
    most = []

    class Watched(ByteTokenizer):
        def encode_batch(self, texts):
            most.append((len(texts), sum(map(len, texts[:-1]))))
            return super().encode_batch(texts)

    many = [f"{i} " * (1 if i < 200 else 150) for i in range(400)]
    found = tokenized(corpus_of("many", many), Watched(), cache=tmp_path)
    assert found.train.documents + found.validation.documents == 400
    assert max(count for count, _ in most) == 7
    assert max(size for _, size in most) < 1000
    assert min(count for count, _ in most) < 7


def test_progress_is_shown_in_bytes_of_text(tmp_path, texts, monkeypatch):
    shown = []

    @contextmanager
    def bar(label, total):
        shown.append((label, total))
        yield shown.append

    monkeypatch.setattr(tokens, "bar", bar)
    monkeypatch.setattr(tokens, "_TOGETHER", 100)
    found = tokenized(texts, BPETokenizer.train(TEXTS, 300), cache=tmp_path)
    label, *steps = shown
    assert label == ("tokenize Some Texts!", texts.size)
    assert steps == sorted(steps)
    assert len(steps) > 5
    assert steps[-1] == found.train.bytes + found.validation.bytes == texts.size


def test_without_a_terminal_nothing_is_said(tmp_path, texts, capsys):
    tokenized(texts, BYTES, cache=tmp_path)
    assert capsys.readouterr() == ("", "")


@given(count=st.integers(1, 10**9))
def test_a_uniform_guess_over_bytes_is_eight_bits(count):
    assert bits_per_byte(count * math.log(256), count) == pytest.approx(8)


def test_bits_per_byte_needs_a_byte():
    with pytest.raises(ResidlabError, match="at least one byte of text; got 0"):
        bits_per_byte(1.0, 0)


def test_wikipedia_as_a_whole(tmp_path):
    """A BPE of 4,096 stands for 3.6 bytes a token on English; the bytes of both splits are those of the articles."""
    if status("wikipedia").state != "present":
        pytest.skip("not run: residlab fetch wikipedia")
    made = corpus("wikipedia")
    tokenizer = tokenizer_for("bpe-4096", made, cache=tmp_path)
    assert tokenizer.vocabulary == 4096
    found = tokenized(made, tokenizer, cache=tmp_path)
    assert found.train.bytes + found.validation.bytes == made.size
    assert (found.train.documents, found.validation.documents) == (9528, 505)
    assert found.validation.byte_lengths[found.validation.ids].sum() == found.validation.bytes
    assert found.train.bytes / len(found.train) == pytest.approx(3.617, abs=0.02)
    assert 400 < tokenizer.decode(found.train.ids[:2000]).count(" ") < 1600
