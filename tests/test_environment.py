"""What must agree between files (pins, conda and pip, citation and package), and what no file may name."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import residlab

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements() -> list[Requirement]:
    """Return every requirement of the package and of its extras, extras that name the package itself left out."""
    extras = PYPROJECT["optional-dependencies"].values()
    texts = [*PYPROJECT["dependencies"], *(text for extra in extras for text in extra)]
    parsed = [Requirement(text) for text in texts]
    return [each for each in parsed if canonicalize_name(each.name) != PYPROJECT["name"]]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    stripped = [line.split("#")[0].strip() for line in lines]
    pairs = [line.split("==") for line in stripped if line]
    return {canonicalize_name(name): Version(version) for name, version in pairs}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_each_requirement_has_a_pin_that_satisfies_it(requirement: Requirement) -> None:
    name = canonicalize_name(requirement.name)
    assert name in pins(), f"constraints.txt pins no version of {name}"
    assert requirement.specifier.contains(pins()[name], prereleases=True)


def test_extras_name_only_extras_that_exist() -> None:
    extras = PYPROJECT["optional-dependencies"]
    named = [Requirement(text) for extra in extras.values() for text in extra]
    own = {extra for each in named if canonicalize_name(each.name) == PYPROJECT["name"] for extra in each.extras}
    assert own <= set(extras)


class TestCondaEnvironment:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))

    def test_python_is_one_that_the_package_allows(self) -> None:
        (python,) = [each for each in self.conda() if re.split("[=<>]", each)[0] == "python"]
        minor = python.removeprefix("python=")
        assert re.fullmatch(r"3\.\d+", minor), f"python should be pinned to a minor version, not {python!r}"
        assert SpecifierSet(PYPROJECT["requires-python"]).contains(f"{minor}.0")

    def test_it_brings_what_the_two_commands_need(self) -> None:
        assert {"pip", "make", "git"} <= set(self.conda())

    def test_pip_installs_the_project_under_its_constraints(self) -> None:
        (pip,) = [each["pip"] for each in self.environment["dependencies"] if isinstance(each, dict)]
        assert pip == ["-c constraints.txt", "-e .[dev]"]
        assert "dev" in PYPROJECT["optional-dependencies"]

    def conda(self) -> list[str]:
        return [each for each in self.environment["dependencies"] if isinstance(each, str)]


class TestCitation:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))

    def test_version_and_licence_are_those_of_the_package(self) -> None:
        assert self.citation["version"] == residlab.__version__
        assert self.citation["license"] == PYPROJECT["license"]

    def test_title_and_authors_are_those_of_the_package(self) -> None:
        assert PYPROJECT["description"].startswith(self.citation["title"])
        assert [each["name"] for each in self.citation["authors"]] == [each["name"] for each in PYPROJECT["authors"]]

    def test_it_names_the_papers_of_the_ledger(self) -> None:
        ledger = yaml.safe_load((ROOT / "book" / "claims.yml").read_text(encoding="utf-8"))
        papers = {(paper["title"], paper["arxiv"].split("v")[0]) for paper in ledger["papers"].values()}
        cited = {
            (each["title"], each["identifiers"][0]["value"].removeprefix("arXiv:"))
            for each in self.citation["references"]
        }
        assert cited == papers


class TestWorkflow:
    path = ROOT / ".github" / "workflows" / "book.yml"
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    jobs = workflow["jobs"]

    def steps(self) -> list[dict[str, object]]:
        return [step for job in self.jobs.values() for step in job["steps"]]

    def test_it_tests_every_python_that_the_package_allows(self) -> None:
        classified = {each.rpartition(" ")[2] for each in PYPROJECT["classifiers"] if ":: 3." in each}
        assert set(self.jobs["test"]["strategy"]["matrix"]["python"]) == classified

    def test_it_calls_targets_of_the_makefile(self) -> None:
        targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
        called = [str(step["run"]).split()[:2] for step in self.steps() if "run" in step]
        assert {"setup", "lint", "test", "book"} <= {target for _, target in called} <= targets
        assert {command for command, _ in called} == {"make"}

    def test_actions_are_the_forge_s_own_at_a_major_version(self) -> None:
        for step in self.steps():
            assert "run" in step or re.fullmatch(r"actions/[a-z-]+@v\d+", str(step["uses"]))

    def test_only_what_publishes_may_write_and_only_from_main(self) -> None:
        assert self.workflow["permissions"] == {"contents": "read"}
        assert {name for name, job in self.jobs.items() if "permissions" in job} == {"publish"}
        publish = self.jobs["publish"]
        assert publish["permissions"] == {"pages": "write", "id-token": "write"}
        assert "refs/heads/main" in publish["if"]
        assert set(publish["needs"]) == {"test", "build"}
        assert all("run" not in step for step in publish["steps"])

    def test_it_publishes_what_make_book_builds(self) -> None:
        (upload,) = [step for step in self.steps() if "upload-pages-artifact" in str(step.get("uses"))]
        assert upload["with"] == {"path": "_build/html"}


class TestChangelog:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    def test_it_names_the_version_of_the_package(self) -> None:
        newest = re.findall(r"^## \[(.+?)\]", self.text, re.MULTILINE)[0]
        assert newest == residlab.__version__ or (newest == "Unreleased" and residlab.__version__ in self.text)

    def test_it_counts_the_claims_of_the_ledger(self) -> None:
        ledger = yaml.safe_load((ROOT / "book" / "claims.yml").read_text(encoding="utf-8"))
        assert f"{len(ledger['claims'])} claims" in self.text

    def test_readme_leads_to_it(self) -> None:
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        for name in ("CONTRIBUTING.md", "CHANGELOG.md"):
            assert f"]({name})" in readme


# Written in pieces, so that this file does not find itself.
FORBIDDEN = {
    "a path of one machine": re.compile(
        r"(?<![\w.}>])/" + r"(?:work|root)/(?=[\w.])" + r"|(?<![\w.}>])/" + r"(?:home|Users)/\w+/"
    ),
    "a package index": re.compile(r"pypi" + r"\.org|files\." + r"pythonhosted|download\." + r"pytorch\.org/whl"),
    "a folder of the workplace": re.compile(r"(?<!\w)\." + r"library\b|\.\./" + r"shared\b"),
}


def committed_or_new_files() -> list[Path]:
    """Return the files that git tracks, and those that it would add."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        [git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def offences(text: str) -> list[str]:
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for what, pattern in FORBIDDEN.items():
            match = pattern.search(line)
            if match:
                found.append(f"line {number} names {what}: {match.group()}")
    return found


def test_no_file_names_a_machine_path_or_a_package_index() -> None:
    found = [
        f"{path.relative_to(ROOT)}, {offence}"
        for path in committed_or_new_files()
        for offence in offences(path.read_bytes().decode("utf-8", errors="ignore"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "cd /" + "work/main",
        'open("/' + 'root/data.json")',
        "/" + "home/someone/residlab",
        "https://pypi" + ".org/simple",
        "https://files." + "pythonhosted.org/packages/x.whl",
        "see ." + "library/README.md",
        "read ../" + "shared/NOTES.md",
    ],
)
def test_the_scan_finds_what_it_looks_for(text: str) -> None:
    assert offences(text)


@pytest.mark.parametrize(
    "text", ["{root}/work/x", "notebooks/work/x.md", "the root / work / home of it", "libraries and shared/ folders"]
)
def test_the_scan_leaves_ordinary_text_alone(text: str) -> None:
    assert not offences(text)
