"""The one exception that a user's slip or a broken environment raises."""


class ResidlabError(Exception):
    """An error that one sentence explains: what was wrong, what was given, what is allowed.

    The command line prints the message without a traceback and exits with code 1.
    """
