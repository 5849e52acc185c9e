"""What a token may be made of, so that it is refused where it is read, before a library fails on it
in its own words."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"[!-~]+")


def is_token(text: str) -> bool:
    """Whether the Authorization header can carry it: no space, no line break, nothing outside
    ASCII."""
    return _TOKEN.fullmatch(text) is not None
