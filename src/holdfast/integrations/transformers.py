"""transformers: a `TrainerCallback` that beats, and saves when the attempt is told to stop.

trainer = Trainer(model, args, ..., callbacks=[HoldfastTrainerCallback()])
trainer.train(resume_from_checkpoint=find_checkpoint(args.output_dir))
"""

from __future__ import annotations

import os

from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from holdfast.integrations.draining import DrainFlag
from holdfast.integrations.folders import load_folder, save_folder
from holdfast.work import beat, checkpoint

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class HoldfastTrainerCallback(TrainerCallback):  # type: ignore[misc]  # not typed here
    """Beats after each step and each batch of an evaluation. Each of the trainer's checkpoints is left for
    the next attempt as well. When the attempt is told to stop, the trainer saves at the end of the
    step, and the process ends."""

    def __init__(self) -> None:
        self._drain = DrainFlag()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._drain.watch()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        beat(state.global_step, state.max_steps)
        if self._drain.requested:
            control.should_save = True
            control.should_evaluate = False
        return control

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        beat()

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        beat()

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.is_world_process_zero:
            save_folder(
                os.path.join(args.output_dir, f"checkpoint-{state.global_step}"), state.global_step
            )
        if self._drain.requested:
            self._drain.end()


def find_checkpoint(output_dir: str) -> str | None:
    """Return the folder to resume from: the trainer's own newest in `output_dir`, or an earlier
    attempt's, whichever is further; None where there is neither."""
    own = get_last_checkpoint(output_dir) if os.path.isdir(output_dir) else None
    step = checkpoint.step()
    if step is None or (own is not None and int(own.rpartition("-")[2]) >= step):
        return own
    folder = os.path.join(output_dir, f"checkpoint-{step}")
    return folder if load_folder(folder) else own
