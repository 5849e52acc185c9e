"""Plain PyTorch: a loop that beats, and state that outlives the attempt.

state = load()                      # None in the first attempt
if state: model.load_state_dict(state["model"]); ...
for batch in run_steps(loader, lambda: {"model": model.state_dict(), ...}, first=done):
    ...
"""

from __future__ import annotations

import io
import time

import torch

from holdfast.integrations.draining import DrainFlag
from holdfast.work import beat, checkpoint, section

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, TypeVar

    T = TypeVar("T")


def run_steps(
    items: Iterable[T],
    state: Callable[[], Any],
    *,
    first: int = 0,
    total: int | None = None,
    every_seconds: float = 600.0,
) -> Iterator[T]:
    """Yield the items and beat after each. Every `every_seconds`, and when the attempt is told to
    stop, save `state()` with the number of steps done; after a stop the process then ends.

    first: the number of steps done in earlier attempts, added to the step of beats and checkpoints.
    """
    drain = DrainFlag()
    drain.watch()
    saved_at = time.monotonic()
    for step, item in enumerate(items, first + 1):
        yield item
        beat(step, total)
        now = time.monotonic()
        if drain.requested or now - saved_at >= every_seconds:
            saved_at = now
            save(state(), step)
        if drain.requested:
            drain.end()


def save(state: Any, step: int) -> bool:
    """Leave a state that `torch.save` can write for the next attempt; return whether it was
    kept."""
    with section(checkpoint.NAME):
        buffer = io.BytesIO()
        torch.save(state, buffer)
        return checkpoint.save(buffer.getbuffer(), step)


def load(map_location: Any = "cpu") -> Any:
    """Return the state that an earlier attempt saved, or None. Only tensors and plain values are
    loaded: nothing is unpickled that could run code."""
    path = checkpoint.path()
    return None if path is None else torch.load(path, map_location, weights_only=True)
