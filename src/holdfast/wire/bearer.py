"""The form of a token, so that a bad one is refused where it is read and not deep in a library."""

import re

_TOKEN = re.compile(r"[!-~]+")


def is_token(text: str) -> bool:
    """Return whether the Authorization header can carry it: printable ASCII without spaces."""
    return _TOKEN.fullmatch(text) is not None
