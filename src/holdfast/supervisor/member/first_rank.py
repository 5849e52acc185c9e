"""Rank 0 of a supervised job: the parent of the policy script and of the host manager of the
script's own machine.

FIRST-1  The script's end is the rank's: its exit code, or 128 + n for signal n. The host manager
         and its processes are ended before that, and soon: after a few seconds of the script's
         silence the other managers end too, and if rank 0 ended later, they would seem to have
         failed first.
- While the script lives its own machine cannot be replaced, so its host manager is started
  again, however it ended, unless the script gave the host back (exit 0) or the job is being
  stopped.
FIRST-3  A TERM comes from a drain, which has sent it to every process here already: it is not
         passed on, and the manager's processes have their whole grace.
FIRST-4  Neither child outlives this process, even if the guardian that would clear the tree died
         with it, because a script that went on would meet the next attempt.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.process.syscalls import set_parent_death_signal
from holdfast.supervisor.line.keys import KEY_VARIABLE
from holdfast.supervisor.member.member import MemberRank, make_manager
from holdfast.supervisor.run_config import RUN_VARIABLE, GivenRun, write_given

AGAIN_SECONDS = 1.0
LONGEST_AGAIN_SECONDS = 30.0
_GOOD_SECONDS = 60.0  # after a manager that lived this long the delays begin anew
_FAREWELL_SECONDS = 0.5  # for a manager that the script has told to end
_TERM_SECONDS = 1.5
_KILL_SECONDS = 2.0
EXIT_NOT_FOUND = 127
EXIT_NOT_EXECUTABLE = 126
LOG_FILE = "host-manager.jsonl"
_STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_ENDINGS = {
    70: "the script was silent",
    72: "it was replaced",
    73: "it had been given up",
    74: "its warden died",
}


def run_first_rank(
    member: MemberRank,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    gpus: int,
    metrics: str = "",
) -> int:
    """Run the script and a host manager until the script has ended. Return the exit code.

    environ: the environment that both inherit. metrics: the address at which the script's context
    serves metrics, `PORT` or `ADDRESS:PORT`; empty for none.
    """
    work = environ.get("HOLDFAST_WORK") or None
    folder = Path(tempfile.mkdtemp(prefix=".supervise-", dir=work))
    try:
        keys = member.make_keys()
        given = GivenRun(
            keys=keys,
            port=member.port,
            address=member.address,
            hosts=member.hosts,
            metrics=metrics,
            term_grace_seconds=member.term_grace_seconds or 0.0,
        )
        write_given(folder / "run.json", given)
        first = _FirstRank(
            folder,
            command,
            {**environ, RUN_VARIABLE: str(folder / "run.json")},
            _make_manager_command(member, gpus, (Path(work) if work else folder) / LOG_FILE),
            {**environ, KEY_VARIABLE: msgspec.json.encode(keys.for_managers()).decode()},
        )
        return first.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_manager_command(member: MemberRank, gpus: int, log_file: Path) -> list[str]:
    config = make_manager(member, gpus, log_file=str(log_file))
    text = msgspec.json.encode(config).decode()
    return [sys.executable, "-P", "-m", "holdfast.supervisor.host", text]


class _FirstRank:
    """The two children, script and host manager. folder: the script's folder."""

    def __init__(
        self,
        folder: Path,
        command: Sequence[str],
        environ: Mapping[str, str],
        manager: Sequence[str],
        manager_environ: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._command = list(command)
        self._environ = environ
        self._manager_command = list(manager)
        self._manager_environ = manager_environ
        self._manager: subprocess.Popen[bytes] | None = None
        self._began = 0.0
        self._again_at: float | None = 0.0  # when to start the manager; None is not at all
        self._delay = AGAIN_SECONDS
        self._stopping = False
        self._wake_fd = self._take_signals()

    def run(self) -> int:
        """Run the script, and the host manager beside it, until the script has ended. Return the
        script's exit code."""
        self._wait(0.0)
        if self._stopping:  # the drain's TERM came before there was a script
            return 128 + signal.SIGTERM
        try:
            script = self._start(self._command, self._environ)
        except OSError as error:
            _say(f"the script cannot be started: {error}")
            return EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        while script.poll() is None:
            self._look_after_manager()
            waits = self._again_at is not None and not self._stopping
            self._wait((self._again_at or 0.0) - time.monotonic() if waits else None)
        # Before anything else: a drain's KILL may come before the rest.
        shutil.rmtree(self._folder, ignore_errors=True)
        self._end_manager()
        code = script.returncode
        return code if code >= 0 else 128 - code

    def _start(self, command: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        parent = os.getpid()

        # FIRST-4. This process has one thread, so code may run between fork and exec.
        def die_with_parent() -> None:
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(EXIT_NOT_EXECUTABLE)

        return subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
        )

    # ---- the host manager

    def _look_after_manager(self) -> None:
        now = time.monotonic()
        if self._manager is not None and self._manager.poll() is not None:
            code = self._manager.returncode
            self._manager = None
            if code != 0 and not self._stopping:
                if now - self._began > _GOOD_SECONDS:
                    self._delay = AGAIN_SECONDS
                self._again_at = now + self._delay
                why = _ENDINGS.get(code, f"signal {-code}" if code < 0 else "")
                _say(
                    f"the host manager of the script's own machine ended with {code}"
                    f"{f' ({why})' if why else ''}; the script runs here, so the machine stays and "
                    f"another is started in {self._delay:g} s"
                )
                self._delay = min(self._delay * 2, LONGEST_AGAIN_SECONDS)
        if self._again_at is not None and now >= self._again_at and not self._stopping:
            self._again_at = None
            self._began = now
            self._manager = self._start(self._manager_command, self._manager_environ)

    def _end_manager(self) -> None:
        """End the manager (FIRST-1); at a drain only wait, because the drain sends KILL. The signal
        is INT, because TERM would mean that the manager's processes had one already (FIRST-3)."""
        for number, seconds in (
            (None, _FAREWELL_SECONDS),
            (signal.SIGINT, _TERM_SECONDS),
            (signal.SIGKILL, _KILL_SECONDS),
        ):
            if self._manager is None or self._manager.poll() is not None:
                return
            if number is not None:
                self._manager.send_signal(number)
            deadline = time.monotonic() + seconds
            while self._manager.poll() is None and (self._stopping or time.monotonic() < deadline):
                self._wait(None if self._stopping else deadline - time.monotonic())

    # ---- signals

    def _take_signals(self) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in (*_STOPS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        return read_fd

    def _wait(self, seconds: float | None) -> None:
        """Wait until a child ended, a signal came, or the time is over."""
        limit = None if seconds is None else max(0.0, seconds)
        ready, _, _ = select.select([self._wake_fd], [], [], limit)
        if ready and not {*os.read(self._wake_fd, 4096)}.isdisjoint(_STOPS):
            self._stopping = True  # FIRST-3


def _say(sentence: str) -> None:
    print(f"holdfast: {sentence}", file=sys.stderr, flush=True)
