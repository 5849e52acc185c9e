"""Holdfast keeps GPU work running until it is finished.

A job uses `beat`, `section`, `track`, `checkpoint`, `on_drain` and `stopping`, which load nothing
but the standard library. `Client` and `AsyncClient` are imported from `holdfast.client` at first use, and
`task`, `model`, `context` and `as_completed` from `holdfast.functions`.
"""

from __future__ import annotations

from holdfast.version import VERSION

TYPE_CHECKING = False  # `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from holdfast.client import AsyncClient, Client
    from holdfast.client.workflows.build import Workflow
    from holdfast.functions import CallContext, as_completed, context, model, task
    from holdfast.work import beat, checkpoint, on_drain, section, stopping, track

__version__ = VERSION
__all__ = [
    "AsyncClient",
    "CallContext",
    "Client",
    "Workflow",
    "__version__",
    "as_completed",
    "beat",
    "checkpoint",
    "context",
    "model",
    "on_drain",
    "section",
    "stopping",
    "task",
    "track",
]
_OF_WORK = ("beat", "checkpoint", "on_drain", "section", "stopping", "track")
_OF_FUNCTIONS = ("task", "model", "context", "as_completed", "CallContext")


def __getattr__(name: str) -> Any:
    if name in _OF_WORK:  # late, because no command of `holdfast` but `beat` has a use for them
        from holdfast import work

        globals()[name] = found = getattr(work, name)  # a loop that beats asks once
        return found
    if name in ("Client", "AsyncClient"):
        from holdfast import client

        return getattr(client, name)
    if name == "Workflow":
        from holdfast.client.workflows import build

        return build.Workflow
    if name in _OF_FUNCTIONS:
        from holdfast import functions

        return getattr(functions, name)
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "Client", "AsyncClient", "Workflow", *_OF_WORK, *_OF_FUNCTIONS})
