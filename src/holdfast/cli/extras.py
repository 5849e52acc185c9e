"""The parts that the slim installation leaves out."""

import importlib.util
from pathlib import Path

from holdfast.errors import HoldfastError

_NEEDED = ("psycopg", "starlette", "uvicorn")


def need_server() -> None:
    """Raise HoldfastError, with the remedy, if a library of the controller is missing."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise HoldfastError(
            f"the controller's libraries are not installed ({', '.join(missing)}). Run: pip "
            "install 'holdfast[server]'",
            code="missing_extra",
        )


def find_docs() -> Path | None:
    """Return the folder of the documents' site, None where its package is not installed."""
    found = importlib.util.find_spec("holdfast_docs")
    places = found.submodule_search_locations if found else None
    return Path(places[0]) / "site" if places else None
