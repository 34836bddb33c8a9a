"""Datasets: streamed once, into the cache, and the same text ever after; clear words about what is missing."""

import gc
import importlib
import json
import sys
import types

import pytest

from residlab.errors import ResidlabError
from residlab.training import hub as module
from residlab.training.corpus import corpus
from residlab.training.tokenizers import ByteTokenizer
from residlab.training.tokens import tokenized

COMMIT = "0123456789abcdef" * 2 + "01234567"


def texts(made, split=None):
    return [document.text for document in made.documents(split)]


@pytest.fixture
def hub(monkeypatch):
    """Stand in for ``datasets`` and the hub: ``rows`` is what a dataset holds, ``asked`` what was asked of it."""
    stub = types.ModuleType("datasets")
    stub.rows, stub.asked = [], []

    def load_dataset(*args, **options):
        stub.asked.append((args, options))
        return iter(stub.rows() if callable(stub.rows) else stub.rows)

    stub.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", stub)
    monkeypatch.setattr(module, "_commit", lambda wanted: COMMIT)
    return stub


def test_a_dataset_is_streamed_once(hub, tmp_path, monkeypatch, capsys):
    hub.rows = [{"text": "one"}, {"text": ""}, {"text": None}, {"text": "two", "url": "x"}]
    made = corpus("hf:someone/some:en@v1?split=test", cache=tmp_path)
    assert hub.asked == [(("someone/some", "en"), {"split": "test", "revision": COMMIT, "streaming": True})]
    assert [(d.name.rpartition(", ")[2], d.text) for d in made.documents()] == [("row 0", "one"), ("row 3", "two")]
    assert texts(made, "train") + texts(made, "validation") in (["one", "two"], ["two", "one"])
    assert f"is at revision {COMMIT}: add @{COMMIT} to its name" in capsys.readouterr().err
    (folder,) = tmp_path.glob("dataset-someone-some-*")
    assert json.loads((folder / "manifest.json").read_text())["revision"] == COMMIT

    monkeypatch.setitem(sys.modules, "datasets", None)  # neither the library nor a network is needed again
    again = corpus("hf:someone/some:en", revision="v1", split="test", cache=tmp_path)
    assert (again.fingerprint, texts(again)) == (made.fingerprint, ["one", "two"])
    assert tokenized(again, ByteTokenizer(), cache=tmp_path).train.documents == 1
    assert len(hub.asked) == 1


def test_the_text_and_nothing_else_is_the_fingerprint(hub, tmp_path):
    hub.rows = [{"text": "one"}, {"text": "two"}]
    first = corpus("hf:a", cache=tmp_path)
    assert corpus(f"hf:a@{COMMIT}", cache=tmp_path).fingerprint == first.fingerprint
    hub.rows = [{"text": "one"}, {"text": "three"}]
    assert corpus("hf:a", cache=tmp_path).fingerprint == first.fingerprint  # what this cache has
    assert corpus("hf:a", cache=tmp_path / "other").fingerprint != first.fingerprint


def test_no_document_is_in_both_splits(hub, tmp_path):
    hub.rows = [{"text": f"document {i % 300}"} for i in range(400)]
    made = corpus("hf:a", cache=tmp_path)
    train, validation = texts(made, "train"), texts(made, "validation")
    assert len(train) + len(validation) == 400
    assert validation
    assert not set(train) & set(validation)


@pytest.mark.parametrize("source", ["hf:endless?column=body&max_bytes=20", "hf:endless?column=body"])
def test_a_stream_stops_at_its_limit(hub, tmp_path, source):
    hub.rows = lambda: ({"body": f"ééé{i}"} for i in range(10**9))
    assert texts(corpus(source, max_bytes=20, cache=tmp_path)) == ["ééé0", "ééé1", "ééé2"]


def test_a_damaged_copy_is_streamed_again(hub, tmp_path):
    hub.rows = [{"text": "one"}, {"text": "two"}]
    made = corpus("hf:a", cache=tmp_path)
    (file,) = tmp_path.glob("dataset-*/documents.jsonl")
    file.write_text('[0, "oops"]\n')
    assert corpus("hf:a", cache=tmp_path).fingerprint == made.fingerprint


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("hf:", {}, r"hf: needs the name of a dataset, hf:NAME\[:CONFIG\]"),
        ("hf:a@", {}, "needs the name of a dataset"),
        ("hf:a?colum=x", {}, r"hf:a\?colum=x: a dataset has no option 'colum'; it has split, column, max_bytes"),
        ("hf:a?column", {}, "options are NAME=VALUE, joined by &; got 'column'"),
        ("hf:a?max_bytes=1e6", {}, "max_bytes must be a whole number >= 1; got '1e6'"),
        ("hf:a", {"max_bytes": 0}, "max_bytes must be a whole number >= 1; got 0"),
        ("hf:a@v1", {"revision": "v2"}, "revision is said twice: 'v1' in hf:a@v1, and 'v2'"),
        ("hf:a", {"validation": 2}, "validation must be a share"),
        ("hf:a", {"separator": "x"}, "separator belongs to text files"),
    ],
)
def test_a_name_that_says_nothing_is_refused(hub, tmp_path, source, options, said):
    with pytest.raises(ResidlabError, match=said):
        corpus(source, cache=tmp_path, **options)
    assert not hub.asked


def broken():
    yield {"text": "one"}
    raise ConnectionError("reset\nby peer")


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (
            [{"content": "one", "url": "x"}],
            r"hf:a has no text in column 'text'; its columns are content, url",
        ),
        ([{"text": 3}], "hf:a has no text in column 'text'; its columns are text"),
        (broken, r"^hf:a cannot be read: ConnectionError: reset$"),
        ([{"text": None}, {"text": ""}], "hf:a is empty: no row of split 'train' has any text"),
    ],
)
def test_a_stream_that_fails_is_one_sentence_and_leaves_nothing(hub, tmp_path, rows, said):
    hub.rows = rows
    with pytest.raises(ResidlabError, match=said):
        corpus("hf:a", cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_without_datasets_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ResidlabError, match=r"hf:a needs datasets, which .*\.\[datasets\]"):
        corpus("hf:a", cache=tmp_path)


# --- The hub's answers, by the real client's errors


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            "RepositoryNotFoundError",
            "there is no dataset a/b on the Hugging Face hub, or it is private",
        ),
        ("RevisionNotFoundError", "the dataset a/b has no revision 'v9'"),
        ("GatedRepoError", "the dataset a/b wants its terms accepted on its page, and then `hf auth login` here"),
        ("OfflineModeIsEnabled", r"is not in the cache, and the Hugging Face hub cannot be reached \(OfflineModeIs"),
    ],
)
def test_the_hub_says_no(tmp_path, monkeypatch, error, said):
    client = pytest.importorskip("huggingface_hub")
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=None))
    kind = getattr(importlib.import_module("huggingface_hub.errors"), error)

    def refuse(self, name, *, revision):
        raise kind.__new__(kind)

    monkeypatch.setattr(client.HfApi, "dataset_info", refuse)
    with pytest.raises(ResidlabError, match=rf"^hf:a/b@v9.*{said}"):
        corpus("hf:a/b@v9", cache=tmp_path)


@pytest.mark.parametrize(
    ("source", "said"), [("hf:./no/where", "there is no folder ./no/where"), ("hf:a b", "there is no dataset a b on")]
)
def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch, source, said):
    pytest.importorskip("huggingface_hub")
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=None))
    with pytest.raises(ResidlabError, match=said):
        corpus(source, cache=tmp_path)


# --- The real library, on files of ours


@pytest.fixture
def real(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    pytest.importorskip("datasets", reason="not run: pip install -e '.[datasets]'")
    folder = tmp_path / "set"
    folder.mkdir()
    yield folder
    gc.collect()  # here, where warnings about the files that it leaves open are ignored


@pytest.mark.filterwarnings("ignore")
def test_a_local_dataset_is_read_by_the_real_library(tmp_path, real):
    lines = [json.dumps({"text": f"document {i}", "n": i}) for i in range(30)]
    (real / "train.jsonl").write_text("\n".join(lines))
    made = corpus(f"hf:{real}", cache=tmp_path / "cache")
    assert texts(made) == [f"document {i}" for i in range(30)]
    assert len(texts(corpus(f"hf:{real}?max_bytes=100", cache=tmp_path / "cache"))) == 10  # of 10 bytes, then of 11
    (real / "train.jsonl").write_text("\n".join(lines[:20]))
    assert texts(corpus(f"hf:{real}", cache=tmp_path / "cache")) == [f"document {i}" for i in range(20)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("?column=body", "has no text in column 'body'; its columns are text, n"),
        ("?split=tset", "cannot be read: ValueError: Bad split: tset"),
        ("?column=n", "has no text in column 'n'"),
    ],
)
def test_the_real_library_says_what_is_missing(tmp_path, real, options, said):
    (real / "train.csv").write_text("text,n\none,1\ntwo,2\n")
    with pytest.raises(ResidlabError, match=said):
        corpus(f"hf:{real}{options}", cache=tmp_path / "cache")
