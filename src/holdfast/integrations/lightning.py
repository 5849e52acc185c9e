"""Lightning: a `Callback` that beats, and saves when the attempt is told to stop.

trainer = Trainer(..., callbacks=[HoldfastCallback()])
trainer.fit(model, ckpt_path=find_checkpoint())
"""

from __future__ import annotations

import os
import tempfile
import time

try:
    from lightning.pytorch import Callback
except ModuleNotFoundError:  # the older name of the same library
    from pytorch_lightning import Callback

from holdfast.integrations.draining import DrainFlag
from holdfast.work import beat, checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class HoldfastCallback(Callback):  # type: ignore[misc]  # the library is not typed here
    """Beats after each batch. Saves for the next attempt every `every_seconds`. When the attempt is
    told to stop, the callback saves at the end of the batch, and the process ends."""

    def __init__(self, every_seconds: float = 600.0) -> None:
        self._drain = DrainFlag()
        self._every_seconds = every_seconds
        self._saved_at = time.monotonic()

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._drain.watch()

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        total = trainer.estimated_stepping_batches
        beat(trainer.global_step, total if total != float("inf") else None)
        now = time.monotonic()
        if self._drain.requested or now - self._saved_at >= self._every_seconds:
            self._saved_at = now
            self._save(trainer)
        if self._drain.requested:
            self._drain.end()

    def on_validation_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        beat()

    def on_test_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        beat()

    def on_predict_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        beat()

    def _save(self, trainer: Any) -> None:
        """Save on every rank, because Lightning's own saving waits for all of them."""
        if not os.environ.get("HOLDFAST_CHECKPOINT_OUT"):
            return
        with tempfile.TemporaryDirectory(dir=trainer.default_root_dir) as folder:
            path = os.path.join(folder, "state.ckpt")
            trainer.save_checkpoint(path)
            if os.path.exists(path):  # only the first rank writes it
                checkpoint.save(path, trainer.global_step)


def find_checkpoint() -> str | None:
    """Return an earlier attempt's checkpoint for `trainer.fit(ckpt_path=…)`, or None."""
    return checkpoint.path()
