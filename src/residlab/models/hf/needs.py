"""What an installation may lack, said before it is missed."""

import importlib.util

from residlab.errors import ResidlabError


def require(what: str, *packages: str) -> None:
    """Check that packages are installed.

    Raises
    ------
    ResidlabError
        Naming those that ``what`` needs and that are not.
    """
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise ResidlabError(f"{what} needs {', '.join(missing)}, which {verb} not installed: pip install residlab[hf]")
