"""The token cache: a corpus as two memory-mapped arrays of ids, made once.

Each split is its documents in the order of the SHA-256 of their texts (a shuffle that neither the order of files nor a
seed changes), ``end`` behind each. A cache lies in ``<cache>/tokens-<corpus>-<tokenizer>-<key>/`` and appears there as
a whole or not at all: ``train.npy``, ``validation.npy``, ``counts.json``, and a manifest with their hashes.
"""

import hashlib
import json
import math
import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, get_args

import numpy as np
from numpy.typing import NDArray

from residlab.data import cache as storage
from residlab.data import manifest
from residlab.data.progress import bar, say
from residlab.errors import ResidlabError
from residlab.training.corpus import Corpus, Document, Split
from residlab.training.tokenizers import Ids, Tokenizer

_FORMAT = "residlab-tokens-1"
_COUNTS = "counts.json"
_TOGETHER = 1 << 20  # characters encoded at once
_AT_MOST = 1024  # documents encoded at once


@dataclass(frozen=True, eq=False)
class TokenFile:
    """The ids of one split.

    Attributes
    ----------
    name
        What to call it in messages, such as ``"wikipedia, train"``.
    ids
        ``(tokens,)``, read-only; memory-mapped where it comes from the cache.
    end
        The id at the end of each document.
    byte_lengths
        ``(vocabulary,)``: the bytes of UTF-8 each id stands for, 0 for ``end``.
    documents, bytes
        How many there are, and the length of their texts.
    fingerprint
        A hash of the ids.

    Examples
    --------
    >>> from residlab.training.tokenizers import ByteTokenizer
    >>> text = token_file("greetings", ["hello", "bye"], ByteTokenizer())
    >>> text.ids.tolist()
    [104, 101, 108, 108, 111, 256, 98, 121, 101, 256]
    >>> text.documents, text.bytes
    (2, 8)
    """

    name: str
    ids: Ids
    end: int
    byte_lengths: NDArray[np.int64]
    documents: int
    bytes: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class TokenizedCorpus:
    """Both splits of a corpus, as one tokenizer sees them.

    Examples
    --------
    >>> from residlab.training.corpus import corpus_of
    >>> from residlab.training.tokenizers import ByteTokenizer
    >>> texts = tokenized(corpus_of("numbers", ["one", "two", "three"]), ByteTokenizer(), cache=Path("cache"))
    >>> texts.train.documents + texts.validation.documents
    3
    """

    tokenizer: Tokenizer
    train: TokenFile
    validation: TokenFile


def bits_per_byte(nats: float, count: int) -> float:
    """Return ``nats / (count ln 2)``: a loss summed over tokens, per byte of the text they stand for.

    ``nats`` is the sum of negative log-likelihoods, those of ``end`` included; ``count`` the sum of the tokens' bytes.
    It compares across tokenizers and corpora, which nats per token does not.

    Raises
    ------
    ResidlabError
        If there is not one byte.

    Examples
    --------
    >>> round(float(bits_per_byte(nats=10 * np.log(2), count=5)), 6)
    2.0
    """
    if count < 1:
        raise ResidlabError(f"bits per byte needs at least one byte of text; got {count}")
    return nats / (count * math.log(2))


def token_file(name: str, texts: list[str], tokenizer: Tokenizer) -> TokenFile:
    """Return the ids of texts held in memory, in their order, ``end`` behind each.

    Examples
    --------
    >>> from residlab.training.tokenizers import ByteTokenizer
    >>> token_file("empty", [], ByteTokenizer()).ids.shape
    (0,)
    """
    parts = [np.append(ids, np.array(tokenizer.end, tokenizer.dtype)) for ids in tokenizer.encode_batch(texts)]
    ids = np.concatenate(parts) if parts else np.zeros(0, tokenizer.dtype)
    ids.flags.writeable = False
    size, digest = sum(len(text.encode()) for text in texts), hashlib.sha256(ids.tobytes()).hexdigest()
    return TokenFile(name, ids, tokenizer.end, tokenizer.byte_lengths, len(texts), size, digest)


def tokenized(corpus: Corpus, tokenizer: Tokenizer, *, cache: Path | None = None) -> TokenizedCorpus:
    """Return the ids of a corpus, from the cache or made now.

    Making them reads the documents once and holds a few at a time, and 20 bytes of each; the disk holds the ids twice
    meanwhile. A bar shows progress on a terminal. A damaged cache is made anew, which one line on stderr says.

    Parameters
    ----------
    corpus
        What to read.
    tokenizer
        How; a BPE learnt from another corpus is welcome.
    cache
        The cache folder; by default `residlab.data.cache.cache_dir`.

    Raises
    ------
    ResidlabError
        If the corpus is empty or cannot be read, or the cache cannot be written. Nothing half-written is left.

    Examples
    --------
    >>> from residlab.training.corpus import corpus_of
    >>> from residlab.training.tokenizers import ByteTokenizer
    >>> texts = tokenized(corpus_of("numbers", ["one", "two", "three"]), ByteTokenizer(), cache=Path("cache"))
    >>> texts.train.bytes + texts.validation.bytes, texts.train.end
    (11, 256)
    """
    where = storage.cache_dir() if cache is None else cache
    header = {"format": _FORMAT, "corpus": corpus.fingerprint, "tokenizer": tokenizer.fingerprint}
    key = hashlib.sha256(json.dumps(header).encode()).hexdigest()
    slug = re.sub(r"[^a-z0-9]+", "-", corpus.name.lower()).strip("-")[:40]
    folder = where / f"tokens-{slug}-{tokenizer.name}-{key[:16]}"
    if not folder.exists() or manifest.problem(folder, header):
        with storage.writing(where, f"tokenize {corpus.name}") as staging:
            _ensure(folder, header, corpus, tokenizer, staging)
    return _opened(folder, corpus, tokenizer)


def _opened(folder: Path, corpus: Corpus, tokenizer: Tokenizer) -> TokenizedCorpus:
    counts = json.loads((folder / _COUNTS).read_text(encoding="utf-8"))

    def of(split: Split) -> TokenFile:
        file = _file(folder, split)
        return TokenFile(
            name=f"{corpus.name}, {split}",
            ids=np.load(file, mmap_mode="r"),
            end=tokenizer.end,
            byte_lengths=tokenizer.byte_lengths,
            documents=counts[split]["documents"],
            bytes=counts[split]["bytes"],
            fingerprint=manifest.sha256_once(file),
        )

    return TokenizedCorpus(tokenizer, of("train"), of("validation"))


def _file(folder: Path, split: Split) -> Path:
    return folder / f"{split}.npy"


def _ensure(folder: Path, header: dict[str, str], corpus: Corpus, tokenizer: Tokenizer, staging: Path) -> None:
    if folder.exists():  # another process may have made it while we waited
        problem = manifest.problem(folder, header)
        if problem is None:
            return
        say(f"{folder.name}: damaged, {problem}; making it again")
    staged = staging / folder.name
    staged.mkdir()
    arrived = staging / "arrived.bin"
    with bar(f"tokenize {corpus.name}", corpus.size) as show, arrived.open("wb") as stream:
        placed = _encode(corpus, tokenizer, stream, show)
    counts = {split: _arrange(arrived, placed[split], tokenizer, _file(staged, split)) for split in get_args(Split)}
    (staged / _COUNTS).write_text(json.dumps(counts, indent=1), encoding="utf-8")
    manifest.seal(staged, header)
    manifest.install(staged, folder)


class _Placed:
    """Where the documents of a split lie in the file of arrival: four numbers each."""

    def __init__(self) -> None:
        self.keys, self.starts, self.lengths, self.bytes = array("Q"), array("q"), array("q"), 0

    def add(self, key: int, start: int, length: int, size: int) -> None:
        self.keys.append(key)
        self.starts.append(start)
        self.lengths.append(length)
        self.bytes += size


def _encode(
    corpus: Corpus, tokenizer: Tokenizer, stream: IO[bytes], show: Callable[[int], None]
) -> dict[Split, _Placed]:
    placed: dict[Split, _Placed] = {"train": _Placed(), "validation": _Placed()}
    start = done = 0
    for some in _together(corpus.documents()):
        for document, ids in zip(some, tokenizer.encode_batch([one.text for one in some]), strict=True):
            size = len(document.text.encode())
            stream.write(ids.tobytes())
            placed[corpus.split(document)].add(document.key, start, len(ids), size)
            start += len(ids)
            done += size
        show(done)
    return placed


def _together(documents: Iterator[Document]) -> Iterator[list[Document]]:
    some: list[Document] = []
    size = 0
    for document in documents:
        some.append(document)
        size += len(document.text)
        if size >= _TOGETHER or len(some) == _AT_MOST:
            yield some
            some, size = [], 0
    if some:
        yield some


def _arrange(arrived: Path, placed: _Placed, tokenizer: Tokenizer, file: Path) -> dict[str, int]:
    """Write a split in the order of its keys. Equal keys are equal texts, so their order is no matter."""
    tokens = sum(placed.lengths) + len(placed.keys)
    width = tokenizer.dtype.itemsize
    end = np.array(tokenizer.end, tokenizer.dtype).tobytes()
    # write(), not a writable map, which a full disk would turn into a bus error
    with arrived.open("rb") as source, file.open("wb") as stream:
        shape = {"descr": np.lib.format.dtype_to_descr(tokenizer.dtype), "fortran_order": False, "shape": (tokens,)}
        np.lib.format.write_array_header_1_0(stream, shape)
        for number in np.argsort(np.frombuffer(placed.keys, dtype=np.uint64), kind="stable").tolist():
            source.seek(placed.starts[number] * width)
            stream.write(source.read(placed.lengths[number] * width))
            stream.write(end)
    return {"tokens": tokens, "bytes": placed.bytes, "documents": len(placed.keys)}
