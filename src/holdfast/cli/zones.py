"""The time zone of the person at this machine."""

from __future__ import annotations

import os
from pathlib import Path

_LINK = Path("/etc/localtime")


def find_local_zone() -> str:
    """Return the name of the time zone in which this machine tells the time: what TZ says, or the
    system. UTC where it has no name that is known."""
    import zoneinfo

    name = os.environ.get("TZ", "").removeprefix(":")
    if not name and _LINK.is_symlink():
        name = os.path.realpath(_LINK).rpartition("zoneinfo/")[2]
    try:
        return zoneinfo.ZoneInfo(name or "UTC").key
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return "UTC"
