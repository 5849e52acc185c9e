"""The process that the guardian holds for a container task: `python -m
holdfast.agent.containers.runner FOLDER`.

It pulls, creates, starts and waits, passes TERM on once, removes the container, and exits as the
container did. What it says for people goes to its standard error, which is the task's; what the
agent must know goes to `container.status`.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.containers.children import Children, Program, Stopped, TimedOut
from holdfast.agent.containers.images import (
    ImageLock,
    Outcome,
    clean_words,
    describe_progress,
    is_engine_away,
    is_missing,
    qualify,
    read_last_words,
    try_take_slot,
)
from holdfast.agent.containers.inside import Inside
from holdfast.agent.containers.plan import PID_FILE, Plan, Status, take_plan, write_status
from holdfast.process.groups import count_oom_kills_of_host
from holdfast.process.syscalls import read_boottime

EXIT_NEVER_RAN = 125  # as the runtimes have it
EXIT_STOPPED = 143
_STEP_SECONDS = 120.0  # a runtime that takes longer for anything but a pull is stuck
_SAY_SECONDS = 2.0
_RETRY_SECONDS = 0.2
_GONE_SECONDS = 0.05
_FIND_SECONDS = 0.02
_WATCH_SECONDS = (0.1, 10.0)
_SETTLE_SECONDS = 5.0
_ATTACH_SECONDS = (1.0, 60.0)
_LOCK_SECONDS = 0.1
_KILLED = (
    128 + 9
)  # podman does not count OOM kills under control groups of version 1; the kernel does, for the whole host
_NEVER = "0001-01-01"  # how both write a time that has not been
_NO_PROGRAM = (
    "exec: ",
    "executable file",
    "attempted to invoke a command",
    "failed to exec pid1",
    "[FATAL tini",
    "chdir to cwd",
)


_NO_TOOLKIT = "could not select device driver"  # all that docker says of it


class _Failed(Exception):
    """Nothing will run; `status` says why."""

    def __init__(self, status: Status) -> None:
        super().__init__(status)
        self.status = status


class Runner:
    """One container, from its image to its removal."""

    def __init__(self, folder: Path, plan: Plan, children: Children) -> None:
        self._folder = folder
        self._plan = plan
        self._children = children
        self._made = False
        self._pid = 0
        self._started_at = 0.0
        self._peak_bytes = 0
        self._passed_on = False  # TERM was delivered
        self._unanswered = False  # the engine was away while it ran
        self._inside: Inside | None = None  # who is told to stop besides the main program

    def live(self) -> Status:
        """Do all of it; return how it ended."""
        try:
            image = self._find_or_pull()
            self._create(image)
            status = self._run()
        except Stopped:
            status = Status(phase="ended", stopped=True)
        except _Failed as failed:
            status = failed.status
        except TimedOut as late:
            status = _fail(
                f"{self._plan.runtime.kind} did not answer in {_STEP_SECONDS:g} s: "
                f"{read_last_words(late.text)}"
            )
        except OSError as error:
            status = _fail(f"{self._plan.runtime.program} cannot be run: {error}")
        removed = self._remove()
        # Whatever broke off its watching, it is known to have run.
        return msgspec.structs.replace(
            status, removed=removed, started_at=status.started_at or self._started_at
        )

    # ---- the image

    def _find_or_pull(self) -> str:
        plan = self._plan
        found = self._find_image(plan.image)
        if found and plan.pull != "always":
            return found
        if plan.pull == "never":
            raise _Failed(
                Status(
                    phase="ended",
                    pull_error=f"{plan.image} is not on this host, and the job never pulls it",
                )
            )
        lock = ImageLock(plan.locks, plan.image)
        try:
            return self._pull_alone(lock)
        finally:
            lock.close()

    def _find_image(self, image: str) -> str:
        code, text = self._children.run(
            self._plan.runtime.find_image(image), _STEP_SECONDS, may_stop=True
        )
        if code == 0:
            return text.strip().splitlines()[-1].strip()
        if is_missing(text):
            return ""
        raise _Failed(
            _fail(f"{self._plan.runtime.kind} cannot look for {image}: {read_last_words(text)}")
        )

    def _pull_alone(self, lock: ImageLock) -> str:
        """PULL-1."""
        plan = self._plan
        since = read_boottime()
        self._say_phase("pulling")
        said = False
        while not lock.try_take():
            if not said:
                said = True
                say(f"another task pulls {plan.image}; waiting for it")
            self._pause(_LOCK_SECONDS)
        outcome = lock.read_outcome(since) if said else None
        if outcome is not None and outcome.error:
            raise _Failed(Status(phase="ended", pull_error=outcome.error))
        if outcome is not None or plan.pull == "missing":
            found = self._find_image(plan.image)
            if found:
                return found
        slot = try_take_slot(plan.locks, plan.pulls_at_once)
        if slot is None:
            say(f"{plan.pulls_at_once} other images are being pulled; waiting")
        while slot is None:
            self._pause(_LOCK_SECONDS)
            slot = try_take_slot(plan.locks, plan.pulls_at_once)
        try:
            found = self._pull()
        except _Failed as failed:
            lock.note_outcome(
                Outcome(at=read_boottime(), error=failed.status.pull_error or "it failed")
            )
            raise
        finally:
            os.close(slot)
        lock.note_outcome(Outcome(at=read_boottime()))
        return found

    def _pause(self, seconds: float) -> None:
        self._children.turn(seconds)
        if self._children.stop_asked:
            raise Stopped

    def _pull(self) -> str:
        plan = self._plan
        began = time.monotonic()
        give_up_at = began + plan.pull_seconds
        say(f"pulling {plan.image}")
        name, text = plan.image, ""
        code = 1
        try:
            code, text = self._pull_name(name, give_up_at)
            other = qualify(name, text) if code else None
            if other is not None:
                name = other
                say(f"pulling {name}")
                code, text = self._pull_name(name, give_up_at)
        except TimedOut as late:
            last = read_last_words(late.text)
            raise _Failed(
                Status(
                    phase="ended",
                    pull_error=f"the pull of {name} timed out after {plan.pull_seconds:g} s; "
                    f"last: {last}",
                )
            ) from None
        except Stopped:
            say(f"the pull of {name} was stopped")
            raise
        if code:
            sentence = f"{name} could not be pulled: {read_last_words(text)}"
            raise _Failed(
                _fail(sentence)
                if is_engine_away(text)
                else Status(phase="ended", pull_error=sentence)
            )
        found = self._find_image(name)
        if not found:
            raise _Failed(Status(phase="ended", pull_error=f"{name} was pulled, and is not there"))
        say(f"pulled {name} in {time.monotonic() - began:.1f} s")
        return found

    def _pull_name(self, name: str, give_up_at: float) -> tuple[int, str]:
        said, said_at = "", time.monotonic()

        def tell(text: str) -> None:
            nonlocal said, said_at
            words = describe_progress(text)
            if words and words != said and time.monotonic() - said_at >= _SAY_SECONDS:
                said, said_at = words, time.monotonic()
                say(f"pulling {name}: {words}, {time.monotonic() - began:.0f} s")

        began = time.monotonic()
        seconds = max(0.0, give_up_at - began)
        return self._children.run(self._plan.runtime.pull(name), seconds, may_stop=True, each=tell)

    # ---- the container

    def _create(self, image: str) -> None:
        plan = self._plan
        self._say_phase("starting")
        options = list(plan.create)
        file = self._folder / "container.env"
        if plan.file_variables:
            fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "w", encoding="utf-8", errors="surrogateescape") as env:
                env.writelines(f"{name}={value}\n" for name, value in plan.file_variables.items())
            options = ["--env-file", str(file), *options]
        self._made = True
        try:
            argv = plan.runtime.create(plan.name, options, image, plan.command)
            code, text = self._children.run(argv, _STEP_SECONDS, variables=plan.variables)
        finally:
            file.unlink(missing_ok=True)
        if self._children.stop_asked:
            raise Stopped
        if code:
            raise _Failed(
                _fail(f"{plan.runtime.kind} could not make the container: {read_last_words(text)}")
            )

    def _run(self) -> Status:
        offset = os.fstat(2).st_size
        oom_kills = count_oom_kills_of_host()
        client = self._children.start(self._plan.runtime.start(self._plan.name), loud=True)
        self._follow(client)
        state = self._wait_over()
        runtime_seconds = max(0.0, read_boottime() - self._started_at) if self._started_at else 0.0
        code = int(state.get("ExitCode", 0))
        if str(state.get("StartedAt", "")).startswith(_NEVER):
            words = read_last_words(self._read_since(offset) or str(state.get("Error", "")))
            raise _Failed(_blame(words))
        if code in (1, 126, 127):
            text = self._read_since(offset)[-2000:]
            if "failed to exec pid1" in text or "[FATAL tini" in text:
                raise _Failed(_blame(read_last_words(text)))
        if self._unanswered and self._ended_with_engine():
            return Status(
                phase="ended",
                pid=self._pid,
                started_at=self._started_at,
                runtime_seconds=runtime_seconds,
                lost=f"{self._plan.runtime.kind}'s engine was stopped under its container, which "
                f"ended then, with {code & 0xFF}",
            )
        killed = code == _KILLED and count_oom_kills_of_host() > oom_kills
        return Status(
            phase="ended",
            pid=self._pid,
            started_at=self._started_at,
            exit_code=code & 0xFF,
            runtime_seconds=runtime_seconds,
            oom=bool(state.get("OOMKilled")) or killed,
            max_memory_bytes=self._peak_bytes,
        )

    def _follow(self, client: Program) -> None:
        """Until the client returns: say when it runs, pass TERM on, look at its memory now and
        then."""
        messenger: Program | None = None
        ask_at = look_at = 0.0
        pause, longest = _WATCH_SECONDS
        while client.exit is None:
            now = time.monotonic()
            if not self._pid:
                self._find_pid()
            elif now >= look_at:
                self._note_peak()
                look_at, pause = now + pause, min(2 * pause, longest)
            stopping = self._children.stop_asked and not self._passed_on
            if stopping and messenger is None and now >= ask_at and self._may_tell_main():
                messenger = self._children.start(self._plan.runtime.kill(self._plan.name, "TERM"))
            waits = [look_at - now if self._pid else _FIND_SECONDS]
            if stopping:
                waits.append(_RETRY_SECONDS if messenger is not None else _GONE_SECONDS)
            self._children.turn(max(0.0, min(waits)))
            if messenger is not None and messenger.exit is not None:
                # Where it failed, the container was not up yet: once more.
                self._passed_on, ask_at = messenger.code == 0, time.monotonic() + _RETRY_SECONDS
                messenger = None

    def _may_tell_main(self) -> bool:
        """TELL-1. While nobody knows its first process it has hardly begun, and is told by the
        runtime alone."""
        if self._inside is None and self._pid:
            self._inside = Inside(
                self._plan.name, self._pid, with_init="--init" in self._plan.create
            )
        return self._inside is None or self._inside.may_tell_main()

    def _note_peak(self) -> None:
        """Written down when it grew much: a container that is killed has nobody left to ask."""
        found = read_peak_bytes(self._pid)
        if found > self._peak_bytes * 1.05:
            self._peak_bytes = found
            self._say_running()

    def _say_running(self) -> None:
        running = Status(
            phase="running",
            pid=self._pid,
            started_at=self._started_at,
            max_memory_bytes=self._peak_bytes,
        )
        write_status(self._folder, running)

    def _find_pid(self) -> None:
        pid = 0
        if self._plan.runtime.kind == "podman":
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
        """The state of the container once it does not run. A client may be lost, or an engine
        restarted, under it."""
        client: Program | None = None
        attach_at, pause = 0.0, _ATTACH_SECONDS[0]
        while True:
            state = self._inspect()
            if state is not None and not _runs(state):
                if client is not None:
                    self._let_end(client)
                return state
            self._unanswered = state is None  # where it answers that it runs, it goes on
            if not attach_at:
                say(
                    f"{self._plan.runtime.kind}'s client is gone and the container is not; "
                    "waiting for it"
                )
            now = time.monotonic()
            attach_at = attach_at or now
            if (
                state is not None
                and (client is None or client.exit is not None)
                and now >= attach_at
            ):
                client = self._children.start(self._plan.runtime.attach(self._plan.name), loud=True)
                attach_at, pause = now + pause, min(2 * pause, _ATTACH_SECONDS[1])
            if self._children.stop_asked and not self._passed_on and self._may_tell_main():
                code, _ = self._children.run(
                    self._plan.runtime.kill(self._plan.name, "TERM"), _STEP_SECONDS
                )
                self._passed_on = code == 0
            if self._pid:
                self._note_peak()
            self._children.turn(1.0)

    def _let_end(self, client: Program) -> None:
        """It has the container's last words to hand on."""
        give_up_at = time.monotonic() + _SETTLE_SECONDS
        while client.exit is None and (left := give_up_at - time.monotonic()) > 0:
            self._children.turn(left)
        if client.exit is None:
            self._children.end(client)

    def _ended_with_engine(self) -> bool:
        """An engine that stops, or starts again, ends what runs, and a program that handles TERM
        then ends with any code."""
        asked = self._plan.runtime.ask_restore()
        if asked is None or self._children.stop_asked:
            return False
        code, text = self._children.run(asked, _STEP_SECONDS)
        return code != 0 or text.strip() != "true"

    def _inspect(self) -> dict[str, Any] | None:
        code, text = self._children.run(self._plan.runtime.inspect(self._plan.name), _STEP_SECONDS)
        if code:
            if is_missing(text) or "no such container" in text.lower():
                raise _Failed(
                    _fail(f"its container was removed by somebody else: {read_last_words(text)}")
                )
            return None
        try:
            state: dict[str, Any] = msgspec.json.decode(text[text.index("[") :])[0]["State"]
        except (ValueError, LookupError, TypeError, msgspec.MsgspecError):
            return None
        return state

    def _read_since(self, offset: int) -> str:
        try:
            with (self._folder / "stderr").open("rb") as file:
                file.seek(offset)
                return file.read(65_536).decode(errors="replace")
        except OSError:
            return ""

    def _remove(self) -> bool:
        """Remove the container and wait for what it leaves below us. False where that cannot be
        confirmed."""
        if not self._made:
            return True
        try:
            code, text = self._children.run(
                self._plan.runtime.remove(self._plan.name), _STEP_SECONDS
            )
        except (TimedOut, OSError):
            return False
        self._children.settle(_SETTLE_SECONDS)
        return code == 0 or "no such container" in text.lower()

    def _say_phase(self, phase: Any) -> None:
        write_status(self._folder, Status(phase=phase))


def _runs(state: dict[str, Any]) -> bool:
    return bool(state.get("Running")) or state.get("Status") in ("running", "stopping", "paused")


def _fail(sentence: str) -> Status:
    """What a runtime says is charged to the job, which may ask for what cannot be had; that there
    is no engine is the host's failure."""
    if is_engine_away(sentence):
        return Status(phase="ended", lost=sentence)
    return Status(phase="ended", runtime_error=sentence)


def _blame(words: str) -> Status:
    """A program or folder that the image has not is the job's error; anything else the
    runtime's."""
    if _NO_TOOLKIT in words:
        words += "; docker reaches NVIDIA devices by the NVIDIA container toolkit, and this host's engine knows of none"
    if any(mark in words for mark in _NO_PROGRAM):
        return Status(phase="ended", start_error=f"in its container: {words}")
    return _fail(words)


def say(sentence: str) -> None:
    """Write a line for a person to the task's standard error."""
    try:
        os.write(2, f"holdfast: {clean_words(sentence)}\n".encode(errors="replace"))
    except OSError:
        pass  # a full disk is no reason to end the task


def read_peak_bytes(pid: int) -> int:
    """The most memory the container's own control group held so far; 0 where it has none, or
    nothing says."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        ours = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        if line in ours:
            continue  # without delegation it shares a group with everything else of this user
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            file = f"/sys/fs/cgroup/memory{path}/memory.max_usage_in_bytes"
        elif number == "0":
            file = f"/sys/fs/cgroup{path}/memory.peak"
        else:
            continue
        try:
            return int(Path(file).read_text())
        except (OSError, ValueError):
            continue
    return 0


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
