"""The recorded runs that come with the book: ``results/`` of the checkout that this library runs from."""

from pathlib import Path

import residlab
from residlab.errors import ResidlabError
from residlab.experiments.plans import EXPERIMENTS, Found, profiles_of, results_file, stages_of
from residlab.experiments.record import Record, Records


def results_folder() -> Path:
    """Return ``results/`` of the checkout.

    Raises
    ------
    ResidlabError
        If residlab was installed without its checkout, which has the records.

    Examples
    --------
    >>> results_folder().name
    'results'
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

    Examples
    --------
    >>> records = recorded("forgetting", "cpu")
    >>> len(records) > 0, recorded("forgetting", "nothing")
    (True, [])
    """
    return list(Records(results_file(experiment, profile, results_folder().parent)))


def recipe(name: str) -> str | None:
    """Return how to make a recorded run again, by its sixteen digits, or None if no record of the checkout has them.

    What is recorded is not run again, so the command writes to a copy of the file in which the stage's lines are left
    out; runs that the stage builds on stay in it.

    Examples
    --------
    >>> recipe("0" * 16) is None
    True
    """
    try:
        folder = results_folder()
    except ResidlabError:
        return None
    for experiment in EXPERIMENTS:
        for profile in profiles_of(experiment):
            file = results_file(experiment, profile, folder.parent)
            for record in Records(file):
                if record.hash == name:
                    stage = record.experiment.partition("/")[2]
                    return (
                        f"it is recorded as {record.experiment} in results/{file.name}; "
                        f"residlab run {experiment} --profile {profile} --stage {stage} --results FILE makes it again, "
                        f"FILE being a copy of that one without the lines of {record.experiment}"
                    )
    return None


def found(experiment: str, profile: str = "cpu") -> Found:
    """Return the records of an experiment by stage.

    Raises
    ------
    ResidlabError
        If there is no such experiment, no checkout, or nothing was recorded in that profile.

    Examples
    --------
    >>> len(found("forgetting").stage("main")) > 0
    True
    """
    stages_of(experiment)
    file = results_file(experiment, profile, results_folder().parent)
    if not file.exists():
        raise ResidlabError(f"{file} is not there: residlab run {experiment} --profile {profile} makes it")
    return Found(experiment, Records(file))
