"""Corpora: every document in one split and one only, whatever the order; clear words about what cannot be read."""

import hashlib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from residlab.data.fetch import status
from residlab.errors import ResidlabError
from residlab.training.corpus import Corpus, Document, corpus, corpus_of

TEXTS = st.lists(st.sampled_from([f"text {i}" for i in range(6)] + ["", " \n"]) | st.text(max_size=5), max_size=12)
SHARES = st.floats(0.001, 0.999)


def texts(made: Corpus, split=None) -> list[str]:
    return [document.text for document in made.documents(split)]


# --- The split


@given(texts_=TEXTS, share=SHARES, data=st.data())
def test_no_document_is_in_both_splits_and_none_is_lost(texts_, share, data):
    made = corpus_of("some", texts_, validation=share)
    kept = [text for text in texts_ if text.strip()]
    if len(set(kept)) < 2:
        with pytest.raises(ResidlabError, match="one document only" if kept else "is empty"):
            texts(made, "train")
        return
    train, validation = texts(made, "train"), texts(made, "validation")
    assert train
    assert validation
    assert not set(train) & set(validation)
    assert sorted(train + validation) == sorted(kept) == sorted(texts(made))
    other = corpus_of("other", data.draw(st.permutations(texts_)), validation=share)
    assert other.fingerprint == made.fingerprint
    assert sorted(texts(other, "validation")) == sorted(validation)


def test_the_split_is_the_hash_against_the_share():
    """Against exact fractions of the whole SHA-256, and so that the share is met."""
    many = [f"document {i}" for i in range(4000)]
    held = {
        text for text in many if Fraction(int(hashlib.sha256(text.encode()).hexdigest(), 16), 2**256) < Fraction(1, 20)
    }
    assert set(texts(corpus_of("many", many), "validation")) == held
    assert len(held) == pytest.approx(200, abs=45)


def test_a_document_keeps_its_split_when_others_come():
    few, many = [f"document {i}" for i in range(100)], [f"document {i}" for i in range(400)]
    assert set(texts(corpus_of("many", many), "validation")) & set(few) == set(
        texts(corpus_of("few", few), "validation")
    )


@pytest.mark.parametrize(("share", "split"), [(1e-300, "validation"), (1 - 2**-53, "train")])
def test_an_extreme_share_leaves_one_document(share, split):
    made = corpus_of("many", [f"document {i}" for i in range(50)], validation=share)
    assert len(texts(made, split)) == 1


@pytest.mark.parametrize("share", [0, 1, -0.1, 5, float("nan"), "0.1", None])
def test_a_share_out_of_range_is_refused(tmp_path, share):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ResidlabError, match="validation must be a share between 0 and 1, both excluded; got"):
        corpus(tmp_path / "a.txt", validation=share)
    with pytest.raises(ResidlabError, match="validation must be a share"):
        corpus_of("some", ["x"], validation=share)


def test_the_share_is_part_of_the_fingerprint():
    assert corpus_of("a", ["x", "y"]).fingerprint != corpus_of("a", ["x", "y"], validation=0.1).fingerprint
    assert corpus_of("a", ["x", "y"]).fingerprint != corpus_of("a", ["x", "z"]).fingerprint


def test_an_unknown_split_is_refused():
    with pytest.raises(ResidlabError, match="split must be one of train, validation; got 'test'"):
        corpus_of("a", ["x", "y"]).documents("test")


def test_half_a_surrogate_pair_is_named():
    with pytest.raises(ResidlabError, match="page 3 is not Unicode: half of a surrogate pair at character 2"):
        corpus_of("a", [Document("page 3", "ab\ud800")])


# --- Files and folders


def test_a_file_with_form_feeds_is_divided_by_them(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\fthree\f \f\x0cfour")
    assert [(d.name, d.text) for d in corpus(tmp_path / "a.txt").documents()] == [
        ("a.txt, part 1", "one\n"),
        ("a.txt, part 2", "three"),
        ("a.txt, part 5", "four"),
    ]


def test_a_separator_divides_files_and_folders(tmp_path):
    (tmp_path / "a.txt").write_text("one<|end|>two")
    assert texts(corpus(tmp_path / "a.txt", separator="<|end|>")) == ["one", "two"]
    (tmp_path / "b.md").write_text("three<|end|>")
    assert texts(corpus(str(tmp_path), separator="<|end|>")) == ["one", "two", "three"]


def test_a_file_without_them_is_divided_into_passages_that_lose_nothing(tmp_path):
    text = "".join(f"Paragraph {i} goes on.\n" * (i % 7 + 1) + "\n" for i in range(1000))
    (tmp_path / "a.txt").write_text(text)
    made = corpus(tmp_path / "a.txt")
    assert "".join(texts(made)) == text
    assert 20 <= len(texts(made)) <= 41
    assert all(passage.endswith("\n\n") for passage in texts(made))
    assert texts(corpus(tmp_path)) == texts(made)  # a folder of one file is that file


def test_a_folder_is_its_files_in_any_order(tmp_path):
    for folder, names in {"one": "abc", "two": "cab"}.items():
        (tmp_path / folder).mkdir()
        for name, text in zip(names, ["first", "second", "third"], strict=True):
            (tmp_path / folder / f"{name}.txt").write_text(text)
    one, two = corpus(tmp_path / "one"), corpus(tmp_path / "two")
    assert texts(one) == ["first", "second", "third"]
    assert texts(two) == ["second", "third", "first"]
    assert one.fingerprint == two.fingerprint
    (tmp_path / "two" / "a.txt").write_text("fourth")
    assert corpus(tmp_path / "two").fingerprint != one.fingerprint


def test_a_file_that_changes_under_our_hands_is_an_error(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("one\ftwo")
    made = corpus(file)
    file.write_text("one\fthree")
    with pytest.raises(ResidlabError, match=r"a\.txt was changed while it was in use"):
        texts(made)


@pytest.mark.parametrize("content", ["", " \n\f\n"])
def test_an_empty_file_is_an_empty_corpus(tmp_path, content):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(ResidlabError, match=r"a\.txt is empty: it holds no document with any text"):
        texts(corpus(tmp_path / "a.txt"), "train")


def test_a_file_too_short_to_divide_says_so(tmp_path):
    (tmp_path / "a.txt").write_text("Brief.")
    with pytest.raises(ResidlabError, match=r"holds one document only.*give more text, or a separator that divides it"):
        texts(corpus(tmp_path / "a.txt"), "train")


def test_bytes_that_are_not_utf8_are_named(tmp_path):
    (tmp_path / "a.txt").write_bytes("one\f zwölf".encode("latin1"))
    with pytest.raises(ResidlabError, match=r"a\.txt is not UTF-8: byte 0xf6 at offset 7"):
        texts(corpus(tmp_path))


def test_an_unknown_name_lists_the_known(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ResidlabError,
        match=r"no corpus 'wikipedai': no such file or folder, nor one of wikipedia, shakespeare, hf:NAME\[:CONFIG\]",
    ):
        corpus("wikipedai")
    with pytest.raises(ResidlabError, match="there is no corpus 'To be, or not to be"):
        corpus("To be, or not to be: that is the question. " * 200)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResidlabError, match="empty holds no text"):
        corpus("empty")


def test_an_option_of_another_source_is_refused(tmp_path):
    with pytest.raises(ResidlabError, match="separator belongs to text files; got wikipedia"):
        corpus("wikipedia", separator="x")
    with pytest.raises(ResidlabError, match="max_bytes belong to hf:NAME; got"):
        corpus(tmp_path, max_bytes=3)
    with pytest.raises(ResidlabError, match="separator must be a text of at least one character"):
        corpus(tmp_path, separator="")
    with pytest.raises(ResidlabError, match="max_bytes must be a whole number >= 1; got 0"):
        corpus("hf:a", max_bytes=0)
    with pytest.raises(ResidlabError, match="needs the name of a dataset"):
        corpus("hf:")


# --- Fetched


@pytest.mark.parametrize("name", ["wikipedia", "shakespeare"])
def test_what_was_not_fetched_is_told_at_once(tmp_path, name):
    with pytest.raises(ResidlabError, match=f"run `residlab fetch {name} --cache-dir "):
        corpus(name, cache=tmp_path)


def fetched(name: str) -> Corpus:
    if status(name).state != "present":
        pytest.skip(f"not run: residlab fetch {name}")
    return corpus(name)


def test_wikipedia_is_divided_by_article():
    made = fetched("wikipedia")
    counts = [len(texts(made, "train")), len(texts(made, "validation"))]
    assert sum(counts) == 10_033
    assert counts[1] == 505
    assert "CC BY-SA" in made.credit
    assert sum(len(text.encode()) for text in texts(made)) == made.size


def test_shakespeare_is_divided_by_play():
    made = fetched("shakespeare")
    assert len(texts(made, "train")) == 35
    assert {d.name for d in made.documents("validation")} == {
        "As You Like It",
        "Antony and Cleopatra",
        "Titus Andronicus",
    }
    assert sum(len(text.encode()) for text in texts(made)) == made.size


@pytest.mark.parametrize("source", ["~nosuchuser/x.txt", "hf:~nosuchuser/x"])
def test_a_home_that_is_not_there_is_a_slip(tmp_path, monkeypatch, source):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ResidlabError):
        corpus(source, cache=tmp_path)
