"""What an installation may lack, said before it is missed; and what transformers says, when nobody should hear."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager

from residlab.errors import ResidlabError, install


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
        raise ResidlabError(f"{what} needs {', '.join(missing)}, which {verb} not installed: {install('hf')}")


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep progress bars and warnings of transformers from the terminal while the context is open."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
