"""Run one part of `holdfast up`: its process, and the delay before it is started again."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

_FIRST_DELAY_SECONDS = 0.1
_LONGEST_DELAY_SECONDS = 10.0
# After a part has lived this long, its next death starts the count anew.
_WELL_SECONDS = 20.0
_QUICK_DEATHS = 4


@dataclass
class Restarts:
    """The count of a part's quick deaths, and the delays that follow from it.

    started_at: the last start (monotonic seconds). words: the part's own words on its last death,
    without numbers. repeats: True if the last two quick deaths had the same words, so that another
    start would not help.
    """

    quick_deaths: int = 0
    started_at: float = 0.0
    repeats: bool = False
    words: str = ""

    def start(self, now: float) -> None:
        """Note that the part was started. `now` is monotonic seconds."""
        self.started_at = now

    def die(self, now: float, words: str = "") -> float:
        """Note that the part died, and return the seconds to wait before its next start. words: the
        part's own sentence on why it died; "" if there is none."""
        told = re.sub(r"\d+", "", words)  # times, ports and process ids differ
        self.repeats, self.words = bool(told) and told == self.words, told
        self.quick_deaths = 1 if now - self.started_at >= _WELL_SECONDS else self.quick_deaths + 1
        delay: float = _FIRST_DELAY_SECONDS * 4.0 ** (self.quick_deaths - 1)
        return min(delay, _LONGEST_DELAY_SECONDS)

    @property
    def keeps_dying(self) -> bool:
        """Return True if the part died so often that a person has to look at its log."""
        return self.quick_deaths > 0 and self.quick_deaths % _QUICK_DEATHS == 0


class PartProcess:
    """Runs one part once. `pidfd` is readable when the process has ended.

    The process has its own session, so that a terminal's Ctrl-C reaches `up` alone, which ends the
    parts in order.
    """

    def __init__(
        self,
        name: str,
        log: Path,
        folder: Path,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.name = name
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._process = subprocess.Popen(
                # -P: Python must not import modules from the folder in which `up` was started.
                [sys.executable, "-P", "-m", "holdfast.cli.up.run_part", name, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=folder,
                env={**environment, **os.environ},
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        finally:
            os.close(output)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid)
        self._told = False

    def send_options(self, options: dict[str, Any]) -> None:
        """Send the part its options, once. If it died meanwhile, its pidfd shows that."""
        assert self._process.stdin is not None
        if self._told:
            return
        self._told = True
        try:
            self._process.stdin.write(json.dumps(options).encode() + b"\n")
            self._process.stdin.close()
        except OSError:
            pass

    @property
    def told(self) -> bool:
        """Return True if the part has its options."""
        return self._told

    def signal(self, number: int) -> None:
        """Send a signal to exactly this process."""
        try:
            signal.pidfd_send_signal(self.pidfd, number)
        except ProcessLookupError:
            pass

    def reap(self) -> int:
        """Return the exit status of the ended process; negative for a signal, as in subprocess."""
        code = self._process.wait()
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except OSError:
                pass
        os.close(self.pidfd)
        return code


def describe_exit(code: int) -> str:
    """Describe a process's end in words."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
