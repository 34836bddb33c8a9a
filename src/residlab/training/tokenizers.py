"""Tokenizers: bytes, or byte-level BPE learnt from a corpus; both give back every text exactly.

Token ids are ``uint16`` arrays, ``uint32`` where the vocabulary needs it. ``end`` marks the end of a document, stands
for no bytes, and no text encodes to it. For bits per byte, `Tokenizer.byte_lengths` says how many bytes of UTF-8 each
id stands for.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from residlab.data import cache as storage
from residlab.data import manifest
from residlab.data.progress import bar, say
from residlab.errors import ResidlabError, install
from residlab.training.corpus import Corpus

if TYPE_CHECKING:
    import tokenizers

Ids = NDArray[np.unsignedinteger[Any]]

VOCABULARY = 4096
_FORMAT = "residlab-bpe-1"
_FILE = "tokenizer.json"
_SAMPLE = 64_000_000  # bytes of training text from which merges are learnt
_PIECE = 1 << 16  # characters; longer texts are encoded in pieces
# Behind a letter or digit and in front of a space or line end a pre-token always ends, so a cut there changes no id.
_CUT = re.compile(r"\w(?=[ \n])")


class Tokenizer(ABC):
    """Texts to ids and back.

    Attributes
    ----------
    name
        ``"bytes"`` or ``"bpe-N"``.
    vocabulary
        Number of ids, the end of a document included.
    end
        The id at the end of a document.
    fingerprint
        A hash of all that decides the ids of a text.
    byte_lengths
        ``(vocabulary,)`` int64: the bytes each id stands for, 0 for ``end``.

    Examples
    --------
    >>> tokenizer = ByteTokenizer()
    >>> tokenizer.decode([*tokenizer.encode("héllo"), tokenizer.end])
    'héllo'
    """

    name: str
    fingerprint: str

    def __init__(self, pieces: Sequence[bytes]) -> None:
        """Take the bytes of every id but ``end``, which is put last."""
        self.vocabulary = len(pieces) + 1
        self.end = len(pieces)
        self.dtype = np.dtype(np.uint16 if self.vocabulary <= 1 << 16 else np.uint32)
        self.byte_lengths: NDArray[np.int64] = np.array([*map(len, pieces), 0], dtype=np.int64)
        self.byte_lengths.flags.writeable = False
        self._pieces = [*pieces, b""]

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of several texts, without ``end``.

        Raises
        ------
        ResidlabError
            If a text is not Unicode (half of a surrogate pair).
        """

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, without ``end``."""
        return self.encode_batch([text])[0]

    def decode(self, ids: Iterable[int] | Ids) -> str:
        """Return the text of ids: nothing for ``end``, U+FFFD where their bytes are not UTF-8.

        Raises
        ------
        ResidlabError
            If an id is not in the vocabulary.
        """
        listed = ids.tolist() if isinstance(ids, np.ndarray) else [int(one) for one in ids]
        if listed and not 0 <= min(listed) <= max(listed) < self.vocabulary:
            wrong = next(one for one in listed if not 0 <= one < self.vocabulary)
            raise ResidlabError(f"a token id must be in [0, {self.vocabulary}); got {wrong}")
        return b"".join([self._pieces[one] for one in listed]).decode("utf-8", errors="replace")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ResidlabError(f"the text is not Unicode: half of a surrogate pair at character {error.start}") from error


class ByteTokenizer(Tokenizer):
    """The bytes of UTF-8: ids 0 to 255, and 256 for the end of a document.

    Examples
    --------
    >>> ByteTokenizer().encode("hé").tolist(), ByteTokenizer().vocabulary
    ([104, 195, 169], 257)
    """

    name = "bytes"
    fingerprint = "residlab-bytes-1"

    def __init__(self) -> None:
        super().__init__([bytes([value]) for value in range(256)])

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of several texts, without ``end`` (`Tokenizer.encode_batch`)."""
        return [np.frombuffer(_utf8(text), dtype=np.uint8).astype(self.dtype) for text in texts]


class BPETokenizer(Tokenizer):
    """Byte-level BPE with GPT-2's pre-tokens: no merge crosses a word, every text has ids.

    Made by `BPETokenizer.train`, `BPETokenizer.from_json` or, cached, by `tokenizer_for`.

    Examples
    --------
    >>> bpe = BPETokenizer.train(["low lower lowest"] * 10, vocabulary=270)
    >>> ids = bpe.encode("lower")
    >>> len(ids) < 5, bpe.decode(ids), int(bpe.byte_lengths[ids].sum())
    (True, 'lower', 5)
    """

    def __init__(self, model: "tokenizers.Tokenizer") -> None:
        ids = model.get_vocab()
        alphabet = _alphabet()
        super().__init__([bytes(alphabet[letter] for letter in token) for token in sorted(ids, key=ids.__getitem__)])
        self.name = f"bpe-{self.vocabulary}"
        self._model = model
        self.fingerprint = hashlib.sha256(self.to_json().encode()).hexdigest()

    @classmethod
    def train(cls, texts: Iterable[str], vocabulary: int = VOCABULARY) -> "BPETokenizer":
        """Learn merges from texts, the most frequent pair first; the order of the texts plays no role.

        A text too short for that many merges gives a smaller vocabulary.

        Raises
        ------
        ResidlabError
            If the vocabulary is less than 257 (256 bytes and the end of a document), or ``tokenizers`` is missing.
        """
        if vocabulary < 257:
            raise ResidlabError(f"vocabulary must be >= 257, 256 bytes and an end; got {vocabulary}")
        library = _library()
        model = library.Tokenizer(library.models.BPE())
        model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary - 1,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        model.train_from_iterator((_checked(text) for text in texts), trainer)
        return cls(model)

    @classmethod
    def from_json(cls, text: str) -> "BPETokenizer":
        """Return the tokenizer that `to_json` wrote.

        Raises
        ------
        ResidlabError
            If it is not one.
        """
        try:
            values = json.loads(text)
            if values["format"] != _FORMAT:
                raise ValueError(f"its format is {values['format']}")
            return cls(_library().Tokenizer.from_str(json.dumps(values["tokenizer"])))
        except ResidlabError:
            raise
        except Exception as error:  # the library raises bare ones
            raise ResidlabError(f"this is no {_FORMAT}: {error}") from error

    def to_json(self) -> str:
        """Return the tokenizer as JSON."""
        return json.dumps({"format": _FORMAT, "tokenizer": json.loads(self._model.to_str())}, ensure_ascii=False)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of several texts, without ``end``, on all threads (`Tokenizer.encode_batch`)."""
        pieces = [list(_cut(_checked(text))) for text in texts]
        encoded = iter(self._model.encode_batch_fast(list(chain.from_iterable(pieces))))
        return [self._joined([next(encoded).ids for _ in cut]) for cut in pieces]

    def _joined(self, parts: list[list[int]]) -> Ids:
        return np.array(parts[0] if len(parts) == 1 else list(chain.from_iterable(parts)), dtype=self.dtype)


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise ResidlabError(f"BPE needs tokenizers, which is not installed: {install('training')}") from error
    return tokenizers


def _alphabet() -> dict[str, int]:
    """Return GPT-2's letter of each byte: itself where it is printable Latin-1, else the next one from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}


def _checked(text: str) -> str:
    _utf8(text)
    return text


def _cut(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > _PIECE and (found := _CUT.search(text, start + _PIECE)):
        yield text[start : found.end()]
        start = found.end()
    yield text[start:]


# --- By name, cached


def tokenizer_for(name: str, corpus: Corpus, *, cache: Path | None = None) -> Tokenizer:
    """Return a tokenizer by its name, for BPE learnt from a corpus' training split.

    BPE is learnt once (2.5 s for 5 MB; from 64 MB at most, the first in the order of the source) and kept in the cache.

    Parameters
    ----------
    name
        ``"bytes"``, or ``"bpe-N"`` with ``N`` the vocabulary, the end of a document included.
    corpus
        What BPE is learnt from.
    cache
        The cache folder; by default `residlab.data.cache.cache_dir`.

    Raises
    ------
    ResidlabError
        If the name is unknown, the corpus cannot be read, or the cache cannot be written.

    Examples
    --------
    >>> from residlab.training.corpus import corpus_of
    >>> tokenizer_for("bytes", corpus_of("numbers", ["one", "two", "three"])).vocabulary
    257
    """
    if name == "bytes":
        return ByteTokenizer()
    found = re.fullmatch(r"bpe-([0-9]{1,7})", name)
    if not found or int(found[1]) < 257:
        raise ResidlabError(f"tokenizer must be bytes or bpe-N, N a number >= 257; got {name!r}")
    where = storage.cache_dir() if cache is None else cache
    header = {"format": _FORMAT, "corpus": corpus.fingerprint, "vocabulary": found[1], "sample": str(_SAMPLE)}
    key = hashlib.sha256(json.dumps(header).encode()).hexdigest()
    folder = where / f"{name}-{key[:16]}"
    if not folder.exists() or manifest.problem(folder, header):
        with storage.writing(where, f"learn {name} from {corpus.name}") as staging:
            _learn(folder, header, corpus, int(found[1]), staging)
    return BPETokenizer.from_json((folder / _FILE).read_text(encoding="utf-8"))


def _learn(folder: Path, header: dict[str, str], corpus: Corpus, vocabulary: int, staging: Path) -> None:
    if folder.exists():  # another process may have made it while we waited
        problem = manifest.problem(folder, header)
        if problem is None:
            return
        say(f"{folder.name}: damaged, {problem}; learning it again")
    with bar(f"learn bpe-{vocabulary} from {corpus.name}", min(corpus.size, _SAMPLE)) as show:
        made = BPETokenizer.train(_sample(corpus, show), vocabulary)
    staged = staging / folder.name
    staged.mkdir()
    (staged / _FILE).write_text(made.to_json(), encoding="utf-8")
    manifest.seal(staged, header)
    manifest.install(staged, folder)


def _sample(corpus: Corpus, show: Callable[[int], None]) -> Iterator[str]:
    taken = 0
    for document in corpus.documents("train"):
        yield document.text
        taken += len(document.text.encode())
        show(taken)
        if taken >= _SAMPLE:
            return
