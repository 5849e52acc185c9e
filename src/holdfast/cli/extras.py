"""Parts that the slim installation leaves out."""

from __future__ import annotations

import importlib.util

from holdfast.errors import HoldfastError

_NEEDED = ("psycopg", "starlette", "uvicorn")


def need_server() -> None:
    """Raise HoldfastError, saying what to install, unless the controller's libraries are there."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise HoldfastError(
            f"the controller's libraries are not installed ({', '.join(missing)}). Run: pip "
            "install 'holdfast[server]'",
            code="missing_extra",
        )
