"""Tokenizers: every text comes back, every id stands for a known number of bytes."""

import json
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.errors import ResidlabError
from residlab.training import tokenizers as ours
from residlab.training.corpus import corpus_of
from residlab.training.tokenizers import BPETokenizer, ByteTokenizer, tokenizer_for

SENTENCES = [
    "The residual stream of a transformer carries what every block has written.",
    "Every block reads the stream, and what it writes is added to the stream.\n\n",
    "Zürich liegt am See; 東京 liegt am Meer. It isn't 1984 any more, we'll see 12,345 of them 😀.",
    "the the the then there theory theme\t\tand   and\r\nand",
]
BPE = BPETokenizer.train(SENTENCES, 380)
BOTH = [ByteTokenizer(), BPE]
both = pytest.mark.parametrize("tokenizer", BOTH, ids=lambda one: one.name)
TEXTS = st.text() | st.lists(st.sampled_from([*"".join(SENTENCES).split(" "), " ", "\n", "\n\n", "  "])).map(" ".join)


@both
@given(text=TEXTS)
def test_every_text_comes_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert ids.dtype == np.uint16
    assert tokenizer.byte_lengths[ids].sum() == len(text.encode())
    assert not (ids == tokenizer.end).any()


@both
@given(texts=st.lists(TEXTS, max_size=5))
def test_a_batch_is_its_texts(tokenizer, texts):
    for ids, text in zip(tokenizer.encode_batch(texts), texts, strict=True):
        np.testing.assert_array_equal(ids, tokenizer.encode(text))


@given(text=st.text())
def test_bytes_are_utf8(text):
    assert ByteTokenizer().encode(text).tolist() == list(text.encode())


@given(content=st.binary())
def test_bytes_that_are_not_utf8_become_replacement_characters(content):
    assert ByteTokenizer().decode(list(content)) == content.decode(errors="replace")


@given(ids=st.lists(st.integers(0, BPE.vocabulary - 1)))
def test_any_sampled_ids_decode_to_the_bytes_they_stand_for(ids):
    """Against each id's bytes as the library's own decoder writes them, byte by byte."""
    text = BPE.decode(np.array(ids, dtype=np.uint16))
    assert text == BPE.decode(ids)
    library = BPE._model.get_vocab()
    letters = {library[letter]: byte for letter, byte in ours._alphabet().items()}
    merged = {index: token for token, index in library.items()}
    content = bytes(letters[library[letter]] for one in ids if one != BPE.end for letter in merged[one])
    assert text == content.decode(errors="replace")
    assert BPE.byte_lengths[ids].sum() == len(content)


def test_the_alphabet_is_that_of_the_library():
    assert len(ours._alphabet()) == 256
    for value in range(256):
        letter = next(letter for letter, byte in ours._alphabet().items() if byte == value)
        if value < 128:
            assert BPE._model.pre_tokenizer.pre_tokenize_str(chr(value))[0][0] == letter
    assert set(ours._alphabet()) == set(ours._library().pre_tokenizers.ByteLevel.alphabet())


@both
def test_the_end_stands_for_nothing_and_no_text_makes_it(tokenizer):
    assert tokenizer.end == tokenizer.vocabulary - 1
    assert tokenizer.byte_lengths.shape == (tokenizer.vocabulary,)
    assert tokenizer.byte_lengths[tokenizer.end] == 0
    assert tokenizer.byte_lengths[:-1].min() == 1
    assert tokenizer.decode([104, tokenizer.end, 104]) == tokenizer.decode([104, 104])
    assert tokenizer.end not in tokenizer.encode("<|endoftext|></s>[EOS]")
    assert not tokenizer.byte_lengths.flags.writeable


def test_sizes_are_as_described():
    assert (ByteTokenizer().vocabulary, ByteTokenizer().end) == (257, 256)
    assert (BPE.name, BPE.vocabulary, BPE.end) == ("bpe-380", 380, 379)
    least = BPETokenizer.train(SENTENCES, 257)
    assert sorted(least.decode([i]) for i in least.encode("été")) == sorted("\ufffd\ufffdt\ufffd\ufffd")
    assert BPETokenizer.train(["ab"], 4096).vocabulary == 258  # one merge is all there is to learn


def test_each_merge_is_of_a_most_frequent_pair():
    """Against BPE by its definition: count all pairs, merge one of the most frequent, count again."""
    words = Counter(token for sentence in SENTENCES for token, _ in BPE._model.pre_tokenizer.pre_tokenize_str(sentence))
    split = {word: list(word) for word in words}
    merges = json.loads(BPE.to_json())["tokenizer"]["model"]["merges"]
    assert len(merges) == 380 - 257
    for left, right in merges:
        pairs = Counter()
        for word, parts in split.items():
            for pair in pairwise(parts):
                pairs[pair] += words[word]
        assert pairs[left, right] == max(pairs.values())
        for word, parts in split.items():
            merged, i = [], 0
            while i < len(parts):
                step = 2 if parts[i : i + 2] == [left, right] else 1
                merged.append("".join(parts[i : i + step]))
                i += step
            split[word] = merged
    vocabulary = BPE._model.get_vocab()
    for word, parts in split.items():
        found = [token for token, _ in BPE._model.pre_tokenizer.pre_tokenize_str(word)]
        if found == [word]:  # a word of plain letters, which stands for itself
            assert BPE.encode(word).tolist() == [vocabulary[part] for part in parts]


@given(text=st.text(alphabet=" \n\tab1.'é日\u3000\x1c_\u0301", max_size=60))
def test_a_long_text_is_cut_where_it_changes_nothing(text):
    whole = BPE._model.encode(text).ids
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "_PIECE", 3)
        assert "".join(ours._cut(text)) == text
        assert BPE.encode(text).tolist() == whole


def test_a_long_text_is_cut_at_all(monkeypatch):
    monkeypatch.setattr(ours, "_PIECE", 3)
    assert list(ours._cut("abc abc abc")) == ["abc abc", " abc"]


def test_the_same_texts_in_any_order_give_the_same_tokenizer():
    again = BPETokenizer.train(iter(SENTENCES[::-1]), 380)
    assert again.fingerprint == BPE.fingerprint
    assert BPETokenizer.train(SENTENCES, 379).fingerprint != BPE.fingerprint


def test_json_brings_it_back():
    back = BPETokenizer.from_json(BPE.to_json())
    assert (back.fingerprint, back.vocabulary, back.name) == (BPE.fingerprint, BPE.vocabulary, BPE.name)
    np.testing.assert_array_equal(back.encode(SENTENCES[2]), BPE.encode(SENTENCES[2]))


def test_a_vocabulary_beyond_16_bits_has_ids_of_32():
    class Wide(ByteTokenizer):
        def __init__(self, size):
            ours.Tokenizer.__init__(self, [b"x"] * (size - 1))

    assert Wide(1 << 16).dtype == np.uint16
    assert Wide((1 << 16) + 1).encode("é").dtype == np.uint32


# --- What is refused


@both
def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(ResidlabError, match="not Unicode: half of a surrogate pair at character 1"):
        tokenizer.encode("a\udfff")
    with pytest.raises(ResidlabError, match="not Unicode"):
        BPETokenizer.train(["fine", "\ud800"])


@both
@pytest.mark.parametrize("wrong", [-1, 400])
def test_an_id_outside_the_vocabulary_is_refused(tokenizer, wrong):
    for ids in ([1, wrong, 2], np.array([1, wrong, 2])):
        with pytest.raises(ResidlabError, match=rf"a token id must be in \[0, {tokenizer.vocabulary}\); got {wrong}"):
            tokenizer.decode(ids)


def test_a_vocabulary_without_room_for_the_bytes_is_refused():
    with pytest.raises(ResidlabError, match="vocabulary must be >= 257, 256 bytes and an end; got 256"):
        BPETokenizer.train(SENTENCES, 256)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"format": "other"}', '{"format": "residlab-bpe-1", "tokenizer": {}}']
)
def test_what_is_no_tokenizer_is_refused(text):
    with pytest.raises(ResidlabError, match="this is no residlab-bpe-1"):
        BPETokenizer.from_json(text)


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ResidlabError, match=r"BPE needs tokenizers, which is not installed: .*\.\[training\]"):
        BPETokenizer.train(SENTENCES)


# --- By name


@pytest.mark.parametrize("name", ["bpe", "bpe-256", "bpe-4k", "byte", "", "BPE-4096", "bpe-99999999"])
def test_an_unknown_name_is_refused(tmp_path, name):
    with pytest.raises(ResidlabError, match=f"tokenizer must be bytes or bpe-N, N a number >= 257; got '{name}'"):
        tokenizer_for(name, corpus_of("a", SENTENCES), cache=tmp_path)


@pytest.fixture
def sentences():
    return corpus_of("sentences", SENTENCES, validation=0.4)


def test_bpe_is_learnt_from_the_training_split_alone(tmp_path, sentences):
    train = [document.text for document in sentences.documents("train")]
    assert 0 < len(train) < len(SENTENCES)
    made = tokenizer_for("bpe-300", sentences, cache=tmp_path)
    assert made.fingerprint == BPETokenizer.train(train, 300).fingerprint
    assert made.fingerprint != BPETokenizer.train(SENTENCES, 300).fingerprint
    assert isinstance(tokenizer_for("bytes", sentences, cache=tmp_path), ByteTokenizer)


def test_bpe_is_learnt_once_for_a_corpus_and_a_size(tmp_path, sentences, monkeypatch):
    made = tokenizer_for("bpe-300", sentences, cache=tmp_path)
    tokenizer_for("bpe-301", sentences, cache=tmp_path)
    tokenizer_for("bpe-300", corpus_of("others", SENTENCES[:2]), cache=tmp_path)
    assert len(list(tmp_path.glob("bpe-*"))) == 3
    monkeypatch.setattr(BPETokenizer, "train", None)
    assert tokenizer_for("bpe-300", sentences, cache=tmp_path).fingerprint == made.fingerprint


def test_a_damaged_tokenizer_is_learnt_again(tmp_path, sentences, capsys):
    made = tokenizer_for("bpe-300", sentences, cache=tmp_path)
    (file,) = tmp_path.glob("bpe-300-*/tokenizer.json")
    file.write_text(file.read_text().replace("h", "x", 1))
    assert tokenizer_for("bpe-300", sentences, cache=tmp_path).fingerprint == made.fingerprint
    assert "has another SHA-256 than the manifest says; learning it again" in capsys.readouterr().err


def test_a_large_corpus_is_learnt_from_its_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(ours, "_SAMPLE", 100)
    made = corpus_of("many", [f"text number {i} " * 3 for i in range(50)])
    shown = []
    assert sum(len(text) for text in ours._sample(made, shown.append)) == shown[-1] in range(100, 160)
