"""diffusers: `pipe(prompt, callback_on_step_end=beat_on_step())` beats after each denoising step."""

from __future__ import annotations

from holdfast.work import beat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    StepEnd = Callable[[Any, int, Any, dict[str, Any]], dict[str, Any]]


def beat_on_step(then: StepEnd | None = None, *, total: int | None = None) -> StepEnd:
    """Return a callback for `callback_on_step_end` that beats, and then calls `then`, if given.

    total: the number of steps; else the pipeline's own number.
    """

    def step_end(pipe: Any, step: int, timestep: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        beat(step + 1, total if total is not None else getattr(pipe, "num_timesteps", None))
        return kwargs if then is None else then(pipe, step, timestep, kwargs)

    return step_end
