"""Reports the counts of the run to the agent, inside a job of Holdfast: the controller shows the
sums of all runs among its own metrics."""

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping

from holdfast.process.table import TASK_VARIABLE
from holdfast.wire.beat import Beat, Counts, encode_beat

INTERVAL_SECONDS = 5.0


class JobCounts:
    """Reports totals from a thread, every few seconds; outside a job, never. The next report makes
    up for one that the agent's socket does not accept."""

    def __init__(self, environ: Mapping[str, str], read: Callable[[], Counts]) -> None:
        self._task = environ.get(TASK_VARIABLE, "")
        self._path = environ.get("HOLDFAST_BEAT_SOCKET", "")
        self._read = read
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to report the run's counts to the agent, from a thread."""
        if self._task and self._path:
            threading.Thread(target=self._run, name="holdfast-counts", daemon=True).start()

    def stop(self) -> None:
        """Stop reporting."""
        self._stop.set()

    def _run(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as line:
            last = False
            while not last:
                last = self._stop.is_set()
                with contextlib.suppress(OSError):
                    word = encode_beat(Beat(task=self._task, counts=self._read()))
                    line.sendto(word, self._path)
                self._stop.wait(INTERVAL_SECONDS)
