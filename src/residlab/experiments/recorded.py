"""The recorded runs that come with the book: ``results/`` of the checkout that this library runs from."""

from pathlib import Path

import residlab
from residlab.errors import ResidlabError
from residlab.experiments.plans import Found, results_file, stages_of
from residlab.experiments.record import Record, Records


def results_folder() -> Path:
    """Return ``results/`` of the checkout.

    Raises
    ------
    ResidlabError
        If residlab was installed without its checkout, which has the records.
    """
    folder = Path(residlab.__file__).resolve().parents[2] / "results"
    if not folder.is_dir():
        raise ResidlabError(
            f"recorded runs lie in results/ of the repository, and {folder} is no folder: "
            "install residlab from a clone, pip install -e ."
        )
    return folder


def recorded(experiment: str, profile: str) -> list[Record]:
    """Return the records of an experiment in a profile, in the order of the file; none where there is no file.

    Raises
    ------
    ResidlabError
        If there is no checkout, or a line of the file is no record.
    """
    return list(Records(results_file(experiment, profile, results_folder().parent)))


def found(experiment: str, profile: str = "cpu") -> Found:
    """Return the records of an experiment by stage.

    Raises
    ------
    ResidlabError
        If there is no such experiment, no checkout, or nothing was recorded in that profile.
    """
    stages_of(experiment)
    file = results_file(experiment, profile, results_folder().parent)
    if not file.exists():
        raise ResidlabError(f"{file} is not there: residlab run {experiment} --profile {profile} makes it")
    return Found(experiment, Records(file))
