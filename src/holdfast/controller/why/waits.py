"""The lines of `why` about a job that waits for others."""

from collections.abc import Iterator

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.words import line, say_moment
from holdfast.core.dependencies import SAID, say_name
from holdfast.wire.api import WhyLine


def explain_waits(found: Circumstances) -> Iterator[WhyLine]:
    """Name each end that the job waits for, and the state of the job that must end."""
    for wait in found.waits:
        parent = say_name(wait.parent, wait.name)
        yield line(
            "dependency",
            f"it waits for {parent} {SAID[wait.wants]}; that one is {wait.state}",
            f"holdfast why {wait.parent}",
        )
    if not found.waits:  # all have ended, and the loop has not seen it yet
        yield line("dependency", f"it {found.job.reason}; the controller decides within seconds")
    if found.job.wait_until is not None and found.job.wait_until > found.now:
        until = say_moment(found.job.wait_until)
        yield line("waiting_start_time", f"and then it waits for its start time until {until}")


def explain_turn(found: Circumstances) -> Iterator[WhyLine]:
    """Explain that the job waits for its turn in its array, or for the jobs that the whole array
    waits for."""
    array = found.array
    if found.waits or array is None:
        yield from explain_waits(found)
    elif array.at_once is None:
        yield line("array", f"it waits for array {array.name}: {array.reason}")
    else:
        yield line(
            "array",
            f"it waits for its turn: array {array.name} runs {array.active} of its "
            f"{array.at_once} at once",
            f"holdfast show {array.id}",
        )
