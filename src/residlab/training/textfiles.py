"""Text files as documents: read in blocks, decoded strictly, cut without losing a character."""

import codecs
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from residlab.errors import ResidlabError

SUFFIXES = (".txt", ".md")
FORM_FEED = "\f"
_BLOCK = 1 << 20
_PASSAGE = 8192


def expanded(path: str | Path) -> Path:
    """Return a path with ``~`` and ``~NAME`` replaced by the home they stand for; as it is where there is none."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def text_files(folder: Path) -> list[Path]:
    """Return the ``*.txt`` and ``*.md`` under a folder, sorted by path; hidden files and folders are left out.

    Raises
    ------
    ResidlabError
        If there is none.
    """
    found = {file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.suffix in SUFFIXES}
    visible = [found[name] for name in sorted(found) if not re.search(r"(^|/)\.", name) and found[name].is_file()]
    if not visible:
        raise ResidlabError(
            f"{folder} holds no text: a folder needs files named {' or '.join('*' + s for s in SUFFIXES)}"
        )
    return visible


def blocks(file: Path) -> Iterator[str]:
    """Yield the text of a UTF-8 file in blocks; a byte order mark is dropped.

    Raises
    ------
    ResidlabError
        If it cannot be read, or at the first byte that is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    done, begun = 0, False
    try:
        with file.open("rb") as stream:
            while True:
                block = stream.read(_BLOCK)
                pending = len(decoder.getstate()[0])
                text = decoder.decode(block, final=not block)
                done += len(block)
                if text and not begun:
                    text, begun = text.removeprefix("\ufeff"), True
                if text:
                    yield text
                if not block:
                    return
    except UnicodeDecodeError as error:
        raise ResidlabError(
            f"{file} is not UTF-8: byte 0x{error.object[error.start]:02x} at offset {done - pending + error.start} "
            f"({error.reason}); convert it, for example with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise ResidlabError(f"{file} cannot be read: {error.strerror}") from error


def holds(file: Path, separator: str) -> bool:
    """Say whether a text file contains a separator."""
    tail = ""
    for block in blocks(file):
        if separator in tail + block:
            return True
        tail = (tail + block)[-len(separator) :]
    return False


def separated(texts: Iterable[str], separator: str) -> Iterator[str]:
    """Yield what lies between separators in a text that comes in blocks."""
    held: list[str] = []  # the blocks of a document not yet at its end; the last one is where a separator may begin
    tail = ""
    for block in texts:
        *ended, rest = (tail + block).split(separator)
        for text in ended:
            yield "".join(held) + text
            held.clear()
        keep = min(len(rest), len(separator) - 1)  # that much of a separator may have come
        held.append(rest[: len(rest) - keep])
        tail = rest[len(rest) - keep :]
    yield "".join(held) + tail


def passage_size(characters: int) -> int:
    """Return the least length of a passage in characters: a fortieth of the text, between 256 and 8192."""
    return max(256, min(_PASSAGE, characters // 40))


def passages(texts: Iterable[str], size: int) -> Iterator[str]:
    """Cut a text that comes in blocks into passages of ``size`` to ``2 size`` characters, which join to the text.

    A passage ends after the first blank line in that range, else after a line, else after a space, else at
    ``2 size``. The cuts do not depend on the blocks.
    """
    buffer, start = "", 0
    for block in texts:
        buffer, start = buffer[start:] + block, 0
        while len(buffer) - start > 2 * size:
            end = _end_of_passage(buffer, start + size, start + 2 * size)
            yield buffer[start:end]
            start = end
    if start < len(buffer):
        yield buffer[start:]


def _end_of_passage(text: str, low: int, high: int) -> int:
    for mark in ("\n\n", "\n", " "):
        found = text.find(mark, low, high)
        if found >= 0:
            return found + len(mark)
    return high
