"""Choose how much time each point of an answer stands for, so that no answer is too large. Pure."""

import math
from typing import Literal

Step = Literal["minute", "hour"]
MAX_RANKS = 64
"""An answer is about so many ranks at most."""
MAX_POINTS = MAX_RANKS * 240
"""A line in a page is 240 points wide."""
_STEPS: dict[Step, int] = {"minute": 60, "hour": 3600}


def choose_point_seconds(step: Step, seconds: float, ranks: int) -> int:
    """Return the seconds that a point stands for: one step, or as many steps as keep the points of
    all ranks within `MAX_POINTS`."""
    length = _STEPS[step]
    steps = math.ceil(seconds / length) * max(1, ranks)
    return length * max(1, math.ceil(steps / MAX_POINTS))
