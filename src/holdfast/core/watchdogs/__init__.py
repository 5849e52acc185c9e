"""The watchdogs, pure: samples and instants in, verdicts out.

Each module has one silhouette: a frozen state, inputs that return the next state, and `check` (or
`sample`) that returns the next state with its verdicts. `watch.TaskWatch` composes them for one
attempt of one task. Instants are seconds of one monotonic clock of the host (the agent uses
CLOCK_BOOTTIME), never dates.
"""

from holdfast.core.watchdogs.signals import GpuReading, Reading, Signal, TreeReading
from holdfast.core.watchdogs.verdicts import LeavingSoon, Rearmed, StandsStill, Suspect, Verdict
from holdfast.core.watchdogs.watch import SampleWish, TaskWatch

__all__ = [
    "GpuReading",
    "LeavingSoon",
    "Reading",
    "Rearmed",
    "SampleWish",
    "Signal",
    "StandsStill",
    "Suspect",
    "TaskWatch",
    "TreeReading",
    "Verdict",
]
