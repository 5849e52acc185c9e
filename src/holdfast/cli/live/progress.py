"""A job's progress for a person: steps, rate and the time left, and a line that shows them while the
output comes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from holdfast.cli.command_io import CommandIO
from holdfast.cli.live.live_line import LiveLine
from holdfast.core.progress.pace import Estimate, estimate
from holdfast.core.words import split_span
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.core.records import JobRecord

LOOK_SECONDS = 2.0


def find_estimate(job: JobRecord, now: datetime) -> Estimate | None:
    """Return the progress of a job; None before its first step."""
    age = 0.0 if job.beat_at is None else (now - job.beat_at).total_seconds()
    return estimate(job.step, job.total, job.rate, age)


def say_rate(found: Estimate) -> str:
    """Write a rate: `12/s`, `3.4/s`, `7.0/min`, `2.5/h`; an empty text where the rate is not
    known."""
    if found.rate is None:
        return ""
    for each, unit in ((1.0, "s"), (60.0, "min"), (3600.0, "h")):
        count = found.rate * each
        if count >= 1 or unit == "h":
            return f"{count:.0f}/{unit}" if count >= 10 else f"{count:.1f}/{unit}"
    raise AssertionError("unreachable")


def say_left(found: Estimate) -> str:
    """Write the time left; an empty text where the time is not known."""
    return "" if found.left_seconds is None else split_span(found.left_seconds)


def say_estimate(found: Estimate) -> str:
    """Write the progress of a job: `step 120/1000 (12%), 3.1/s, 4m44s left`."""
    of = f"/{found.total} ({100 * found.step / found.total:.0f}%)" if found.total else ""
    left = say_left(found)
    parts = (f"step {found.step}{of}", say_rate(found), left and f"{left} left")
    return ", ".join(filter(None, parts))


class StepLine:
    """Shows a running job's progress on the last line of a terminal while nothing is printed there.

    A thread asks for the job now and then. The line is shown only below a whole line of output,
    because it could not be taken away again without the beginning of another.
    """

    def __init__(self, io: CommandIO, job_id: str, *, wanted: bool = True) -> None:
        self._io, self._job_id = io, job_id
        self._line = LiveLine(wanted=wanted and not io.as_json)
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._whole = True

    def __enter__(self) -> StepLine:
        if self._line.is_shown:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        with self._lock:
            self._line.clear()

    @contextlib.contextmanager
    def output(self, data: bytes = b"\n") -> Iterator[None]:
        """Remove the line while `data` is written to the terminal."""
        with self._lock:
            self._line.clear()
            yield
            self._whole = data.endswith(b"\n") if data else self._whole

    def show_job(self, job: JobRecord) -> None:
        """Show the job as it is now."""
        found = find_estimate(job, datetime.now(UTC))
        with self._lock:
            if found is None or job.state.value != "running":
                self._line.clear()
            elif self._whole and not self._over.is_set():
                self._line.show(say_estimate(found))

    def _look(self) -> None:
        with contextlib.suppress(HoldfastError), self._io.client() as client:
            while not self._over.wait(LOOK_SECONDS):
                with contextlib.suppress(HoldfastError):
                    self.show_job(client.job(self._job_id))
