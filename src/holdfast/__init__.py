"""Holdfast keeps GPU work running until it is finished.

A job uses `beat`, `section`, `track`, `checkpoint` and `on_drain`, which load nothing but the
standard library. `Client` and `AsyncClient` are imported from `holdfast.client` at first use.
"""

from __future__ import annotations

from holdfast.work import beat, checkpoint, on_drain, section, track

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from holdfast.client import AsyncClient, Client

__version__ = "0.1.0"
__all__ = [
    "AsyncClient",
    "Client",
    "__version__",
    "beat",
    "checkpoint",
    "on_drain",
    "section",
    "track",
]


def __getattr__(name: str) -> Any:
    if name in ("Client", "AsyncClient"):
        from holdfast import client

        return getattr(client, name)
    if name == "Workflow":
        from holdfast.client.flow.build import Workflow

        return Workflow
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "Client", "AsyncClient"})
