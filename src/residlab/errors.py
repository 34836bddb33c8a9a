"""The one exception that a user's slip or a broken environment raises, and what its messages share."""


class ResidlabError(Exception):
    """An error that one sentence explains: what was wrong, what was given, what is allowed.

    The command line prints the message without a traceback and exits with code 1.

    Examples
    --------
    >>> from residlab.precision.formats import FP32, round_number
    >>> round_number(0.1, FP32, mode="nearst")
    Traceback (most recent call last):
        ...
    residlab.errors.ResidlabError: mode must be one of nearest, toward_zero, up, down; got 'nearst'
    """


def install(extra: str) -> str:
    """Return how to install what is missing: residlab is on no package index, so from a clone of it.

    Parameters
    ----------
    extra
        One of the project's optional dependencies.

    Examples
    --------
    >>> install("training")
    "in a clone of residlab, python -m pip install -e '.[training]'"
    """
    return f"in a clone of residlab, python -m pip install -e '.[{extra}]'"
