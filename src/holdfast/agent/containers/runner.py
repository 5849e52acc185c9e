"""Run a container task as the guardian's child: `python -m holdfast.agent.containers.runner
FOLDER`.

This process, the runner, pulls the image, creates and starts the container, passes TERM on once,
removes the container, and exits with the container's exit code. Its lines for people go to its
standard error, which is the task's; its state, for the agent, goes to `container.status`.
"""

import fcntl
import os
import stat
import struct
import sys
import termios
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.containers.children import Children, Program, Stopped, TimedOut
from holdfast.agent.containers.images import is_missing, read_last_words
from holdfast.agent.containers.inside import Inside
from holdfast.agent.containers.oom_log import OomLog
from holdfast.agent.containers.plan import (
    PID_FILE,
    Plan,
    RunnerStatus,
    mark_path,
    take_plan,
    write_status,
)
from holdfast.agent.containers.pulls import STEP_SECONDS, NeverRan, Puller, make_failure, say
from holdfast.process.groups import TaskGroup, find_apart_groups
from holdfast.process.syscalls import read_boottime

EXIT_NEVER_RAN = 125  # the runtimes' own code for this
EXIT_STOPPED = 143
IMAGE_ID = "HOLDFAST_IMAGE_ID"
_RETRY_SECONDS = 0.2
_GONE_SECONDS = 0.05
_FIND_SECONDS = 0.02
_WATCH_SECONDS = (0.1, 10.0)
_SETTLE_SECONDS = 5.0
_ATTACH_SECONDS = (1.0, 60.0)
_KILLED = 128 + 9
_NEVER = "0001-01-01"  # how both runtimes write a time that has not come
_NO_PROGRAM = (
    "exec: ",
    "executable file",
    "attempted to invoke a command",
    "failed to exec pid1",
    "[FATAL tini",
    "chdir to cwd",
)
_FORGOT = (
    ": its state was reset while it ran, so how it ended is not known; leave the engine's folders "
    "below /run and /tmp alone while containers run"
)
_NO_TOOLKIT = "could not select device driver"  # docker's only words for it


class Runner:
    """Runs one container, from its image to its removal."""

    def __init__(self, folder: Path, plan: Plan, children: Children) -> None:
        self._folder = folder
        self._plan = plan
        self._runtime = plan.runtime
        self._children = children
        self._made = False
        self._pid = 0
        self._started_at = 0.0
        self._groups: list[TaskGroup] = []
        self._peak_bytes = 0
        self._passed_on = False  # TERM was delivered
        self._unanswered = False  # the engine was away while it ran
        self._inside: Inside | None = None  # sends TERM to the other processes

    def live(self) -> RunnerStatus:
        """Run the container from the pull to its removal; return its last status."""
        try:
            image = Puller(self._folder, self._plan, self._children).find_or_pull()
            self._create(image)
            status = self._run()
        except Stopped:
            status = RunnerStatus(phase="ended", stopped=True)
        except NeverRan as failed:
            status = failed.status
        except TimedOut as late:
            kind, words = self._runtime.kind, read_last_words(late.text)
            status = make_failure(f"{kind} did not answer in {STEP_SECONDS:g} s: {words}")
        except OSError as error:
            status = make_failure(f"{self._runtime.program} cannot be run: {error}")
        removed = self._remove()
        # A container that was lost while it ran has a start all the same.
        started_at = status.started_at or self._started_at
        return msgspec.structs.replace(status, removed=removed, started_at=started_at)

    def _create(self, image: str) -> None:
        plan = self._plan
        write_status(self._folder, RunnerStatus(phase="starting"))
        options = list(plan.create)
        file = self._folder / "container.env"
        variables = {**plan.file_variables, **({IMAGE_ID: image} if plan.tells_image else {})}
        if variables:
            fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as env:
                env.writelines(f"{name}={value}\n" for name, value in variables.items())
            options = ["--env-file", str(file), *options]
        # From now on each new agent asks this runtime for leftover containers (DESK-1).
        mark_path(plan.locks, plan.runtime.kind).touch(mode=0o600)
        self._made = True
        try:
            argv = self._runtime.create(plan.name, options, image, plan.command)
            code, text = self._children.run(argv, STEP_SECONDS, variables=plan.variables)
        finally:
            file.unlink(missing_ok=True)
        if self._children.stop_asked:
            raise Stopped
        if code:
            kind, words = self._runtime.kind, read_last_words(text)
            raise NeverRan(make_failure(f"{kind} could not make the container: {words}"))

    def _run(self) -> RunnerStatus:
        with OomLog() as oom_log:
            return self._run_logged(oom_log)

    def _run_logged(self, oom_log: OomLog) -> RunnerStatus:
        offset = len(self._read_since(0, -1))
        fed = "--interactive" in self._plan.create  # from our stdin, the task's
        start = self._runtime.start(self._plan.name, fed=fed)
        stdin = "/proc/self/fd/0" if fed else None
        client = self._children.start(start, loud=True, stdin=stdin)
        self._follow(client)
        state = self._wait_over()
        runtime_seconds = max(0.0, read_boottime() - self._started_at) if self._started_at else 0.0
        code = int(state.get("ExitCode", 0))
        if str(state.get("StartedAt", "")).startswith(_NEVER):  # the program never ran
            words = read_last_words(
                self._read_since(offset).decode(errors="replace") or str(state.get("Error", ""))
            )
            raise NeverRan(_blame(words))
        if str(state.get("FinishedAt", "")).startswith(_NEVER):
            raise NeverRan(
                make_failure(f"{self._runtime.kind} has forgotten its container{_FORGOT}")
            )
        if code in (1, 126, 127):  # the small init may have failed to execute the program
            text = self._read_since(offset)[-2000:].decode(errors="replace")
            if "failed to exec pid1" in text or "[FATAL tini" in text:
                raise NeverRan(_blame(read_last_words(text)))
        ended = RunnerStatus(
            phase="ended",
            pid=self._pid,
            started_at=self._started_at,
            runtime_seconds=runtime_seconds,
        )
        if self._unanswered and self._ended_with_engine():
            lost = (
                f"{self._runtime.kind}'s engine was stopped under its container, which ended "
                f"then, with {code & 0xFF}"
            )
            return msgspec.structs.replace(ended, lost=lost)
        return msgspec.structs.replace(
            ended,
            exit_code=code & 0xFF,
            oom=bool(state.get("OOMKilled"))
            or (code == _KILLED and oom_log.names_container(str(state.get("Id", "")))),
            max_memory_bytes=self._peak_bytes,
        )

    # ---- while it runs

    def _follow(self, client: Program) -> None:
        """Note the container's start, pass TERM on, and read its memory, until its client
        returns."""
        messenger: Program | None = None
        ask_at = look_at = 0.0
        pause, longest = _WATCH_SECONDS
        while client.exit is None:
            now = time.monotonic()
            if not self._pid:
                self._find_pid()
            if self._pid and now >= look_at:
                self._note_peak()
                look_at, pause = now + pause, min(2 * pause, longest)
            stopping = self._children.stop_asked and not self._passed_on
            if stopping and messenger is None and now >= ask_at and self._may_tell_main():
                messenger = self._children.start(self._runtime.kill(self._plan.name, "TERM"))
            waits = [look_at - now if self._pid else _FIND_SECONDS]
            waits += self._tell_others()
            if stopping:
                waits.append(_RETRY_SECONDS if messenger is not None else _GONE_SECONDS)
            self._children.turn(max(0.0, min(waits)))
            if messenger is not None and messenger.exit is not None:
                # If the signal failed, the container was not up yet: try again.
                self._passed_on, ask_at = messenger.code == 0, time.monotonic() + _RETRY_SECONDS
                messenger = None

    def _may_tell_main(self) -> bool:
        """Return True if the main program may get TERM (TELL-1). While the first process is not
        known, only the runtime can signal the container."""
        if self._inside is None and self._pid:
            with_init = "--init" in self._plan.create
            self._inside = Inside(
                self._plan.name,
                self._pid,
                with_init=with_init,
                grace_seconds=self._plan.grace_seconds,
                tell=self._plan.stop_tells,
            )
        return self._inside is None or self._inside.may_tell_main()

    def _tell_others(self) -> list[float]:
        """Send TERM to the other processes of the container once the main process has had its TERM
        (TELL-1). Return the seconds until the next look; none where no process is to be told."""
        if self._inside is None or not self._passed_on or self._inside.settled:
            return []
        self._inside.tell_others()
        return [max(0.0, self._inside.next_at - time.monotonic())]

    def _note_peak(self) -> None:
        """Save the peak memory if it grew by 5 %, because after a kill no other record has it."""
        self._groups = self._groups or find_apart_groups([self._pid])[self._pid]
        found = max((group.read_peak_bytes() for group in self._groups), default=0)
        if found > self._peak_bytes * 1.05:
            self._peak_bytes = found
            self._say_running()

    def _say_running(self) -> None:
        running = RunnerStatus(
            phase="running",
            pid=self._pid,
            started_at=self._started_at,
            max_memory_bytes=self._peak_bytes,
        )
        write_status(self._folder, running)

    def _find_pid(self) -> None:
        pid = 0
        if self._runtime.kind == "podman":
            try:
                pid = int((self._folder / PID_FILE).read_text())
            except (OSError, ValueError):
                pass
        else:
            state = self._inspect()
            pid = int(state.get("Pid") or 0) if state else 0
        if pid:
            self._pid, self._started_at = pid, read_boottime()
            self._say_running()

    def _wait_over(self) -> dict[str, Any]:
        """Wait until the container has ended, though its client or its engine may be lost
        before; return its state."""
        client: Program | None = None
        attach_at, pause = 0.0, _ATTACH_SECONDS[0]
        while True:
            state = self._inspect()
            if state is not None and not _runs(state):
                if client is not None:
                    self._let_end(client)
                return state
            self._unanswered = state is None  # an engine that answers has the container
            if not attach_at:
                kind = self._runtime.kind
                say(f"{kind}'s client is gone and the container is not; waiting for it")
            now = time.monotonic()
            attach_at = attach_at or now
            unattached = client is None or client.exit is not None
            if state is not None and unattached and now >= attach_at:
                client = self._children.start(self._runtime.attach(self._plan.name), loud=True)
                attach_at, pause = now + pause, min(2 * pause, _ATTACH_SECONDS[1])
            if self._children.stop_asked and not self._passed_on and self._may_tell_main():
                kill = self._runtime.kill(self._plan.name, "TERM")
                self._passed_on = self._children.run(kill, STEP_SECONDS)[0] == 0
            if self._pid:
                self._note_peak()
            self._children.turn(min([1.0, *self._tell_others()]))

    def _let_end(self, client: Program) -> None:
        """Wait until a runtime's client has passed on the last output of the container."""
        give_up_at = time.monotonic() + _SETTLE_SECONDS
        while client.exit is None and (left := give_up_at - time.monotonic()) > 0:
            self._children.turn(left)
        if client.exit is None:
            self._children.end(client)

    def _ended_with_engine(self) -> bool:
        """Return True if the engine stopped, because that ends its containers, with any exit
        code."""
        asked = self._runtime.ask_restore()
        if asked is None or self._children.stop_asked:
            return False
        code, text = self._children.run(asked, STEP_SECONDS)
        return code != 0 or text.strip() != "true"

    def _inspect(self) -> dict[str, Any] | None:
        code, text = self._children.run(self._runtime.inspect(self._plan.name), STEP_SECONDS)
        if code:
            if is_missing(text) or _is_gone(text):
                words = read_last_words(text)
                raise NeverRan(make_failure(f"its container was removed from outside: {words}"))
            return None
        try:
            container: dict[str, Any] = msgspec.json.decode(text[text.index("[") :])[0]
            state: dict[str, Any] = {"Id": container.get("Id"), **container["State"]}
        except (ValueError, LookupError, TypeError, msgspec.MsgspecError):
            return None
        return state

    def _read_since(self, offset: int, limit_bytes: int = 65_536) -> bytes:
        """Return the bytes that were written to the task's standard error, once the log writer
        has stored them."""
        give_up_at = time.monotonic() + _SETTLE_SECONDS
        while _has_unread(2) and time.monotonic() < give_up_at:
            time.sleep(_GONE_SECONDS)
        try:
            with (self._folder / "stderr").open("rb") as file:
                file.seek(offset)
                return file.read(limit_bytes)
        except OSError:
            return b""

    def _remove(self) -> bool:
        """Remove the container and wait until it is gone. Return False if that cannot be
        confirmed."""
        if not self._made:
            return True
        try:
            remove = self._runtime.remove(self._plan.name)
            code, text = self._children.run(remove, STEP_SECONDS)
        except (TimedOut, OSError):
            return False
        self._children.wait_until_gone(_SETTLE_SECONDS)
        return code == 0 or _is_gone(text)


def _has_unread(fd: int) -> bool:
    """Return True if a pipe has bytes that were not read yet."""
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return False
    try:
        found: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]
    except OSError:
        return False
    return found > 0


def _runs(state: dict[str, Any]) -> bool:
    live = ("running", "stopping", "paused")
    return bool(state.get("Running")) or state.get("Status") in live


def _is_gone(text: str) -> bool:
    return "no such container" in text.lower()


def _blame(words: str) -> RunnerStatus:
    """Return the status of a start that failed: the job's error if the image lacks the program
    or folder, else the runtime's."""
    if _NO_TOOLKIT in words:
        words += (
            "; docker reaches NVIDIA devices by the NVIDIA container toolkit, and this host's "
            "engine knows of none"
        )
    if any(mark in words for mark in _NO_PROGRAM):
        return RunnerStatus(phase="ended", start_error=f"in its container: {words}")
    return make_failure(words)


def main(argv: list[str]) -> int:
    """Run the container planned in the folder; return its exit code."""
    folder = Path(argv[0])
    plan = take_plan(folder)
    status = Runner(folder, plan, Children(folder, os.environ)).live()
    write_status(folder, status)
    if status.exit_code is not None:
        return status.exit_code
    for sentence in (status.pull_error, status.runtime_error, status.start_error, status.lost):
        if sentence:
            say(sentence)
    return EXIT_STOPPED if status.stopped else EXIT_NEVER_RAN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
