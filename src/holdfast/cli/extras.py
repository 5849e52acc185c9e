"""The parts that the slim installation leaves out, and what only Linux has."""

import importlib.util
import platform
import sys
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.version import name_install

_NEEDED = ("psycopg", "starlette", "uvicorn")


def need_linux(command: str) -> None:
    """Raise HoldfastError, with the remedy, on another system than Linux."""
    if sys.platform != "linux":
        raise HoldfastError(
            f"`holdfast {command}` needs Linux (pidfd, /proc), and this is "
            f"{platform.system()}. Run it on a Linux machine; from here, `holdfast login URL` and "
            "every other command use that one",
            code="needs_linux",
        )


def need_server() -> None:
    """Raise HoldfastError, with the remedy, if a library of the controller is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise HoldfastError(
            f"the controller's libraries are not installed ({', '.join(missing)}). Run: "
            f"{name_install('server')}",
            code="missing_extra",
        )


def find_docs() -> Path | None:
    """Return the folder of the documents' site, None where its package is not installed."""
    found = importlib.util.find_spec("holdfast_docs")
    places = found.submodule_search_locations if found else None
    return Path(places[0]) / "site" if places else None
