"""accelerate: `run_steps` around the prepared loader; the accelerator's state outlives the attempt.

done = load_state(accelerator, "state")          # 0 in the first attempt
loader = accelerator.skip_first_batches(loader, done)
for batch in run_steps(accelerator, loader, "state", first=done):
    ...
"""

from __future__ import annotations

import os
import time

from holdfast.integrations.draining import DrainFlag
from holdfast.integrations.folders import load_folder, save_folder
from holdfast.work import beat, checkpoint, section

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, TypeVar

    T = TypeVar("T")


def run_steps(
    accelerator: Any,
    items: Iterable[T],
    folder: str | os.PathLike[str],
    *,
    first: int = 0,
    total: int | None = None,
    every_seconds: float = 600.0,
) -> Iterator[T]:
    """Yield the items and beat after each. Every `every_seconds`, and when the attempt is told to
    stop, save the accelerator's state to `folder` and leave it for the next attempt; after a stop
    the process then ends. first: the number of steps done in earlier attempts."""
    drain = DrainFlag()
    drain.watch()
    saved_at = time.monotonic()
    for step, item in enumerate(items, first + 1):
        yield item
        beat(step, total)
        now = time.monotonic()
        if drain.requested or now - saved_at >= every_seconds:
            saved_at = now
            save_state(accelerator, folder, step)
        if drain.requested:
            drain.end()


def save_state(accelerator: Any, folder: str | os.PathLike[str], step: int) -> bool:
    """Save the accelerator's state to `folder`, and leave it for the next attempt of this rank."""
    if not os.environ.get("HOLDFAST_CHECKPOINT_OUT"):
        return False
    with section(checkpoint.NAME):
        accelerator.save_state(os.fspath(folder))
        return save_folder(folder, step)


def load_state(accelerator: Any, folder: str | os.PathLike[str]) -> int:
    """Load the state that an earlier attempt saved, by way of `folder`; return its step, or 0."""
    if not load_folder(folder):
        return 0
    accelerator.load_state(os.fspath(folder))
    return checkpoint.step() or 0
