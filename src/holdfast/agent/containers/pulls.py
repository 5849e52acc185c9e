"""Find the image of a container task on the host, or let one task pull it for all that wait."""

import os
import time
from pathlib import Path
from typing import NoReturn

from holdfast.agent.containers import images
from holdfast.agent.containers.children import Children, Stopped, TimedOut
from holdfast.agent.containers.plan import Plan, RunnerStatus, write_status
from holdfast.process.syscalls import read_boottime

STEP_SECONDS = 120.0  # a runtime that needs longer for a command, other than a pull, is stuck
_SAY_SECONDS = 2.0
_LOCK_SECONDS = 0.1


class NeverRan(Exception):
    """Raised where the container will never run; `status` has the reason."""

    def __init__(self, status: RunnerStatus) -> None:
        super().__init__(status)
        self.status = status


def make_failure(sentence: str) -> RunnerStatus:
    """Return the status for a runtime's error. The job is at fault, or the host where the runtime's
    engine is away."""
    if images.is_engine_away(sentence):
        return RunnerStatus(phase="ended", lost=sentence)
    return RunnerStatus(phase="ended", runtime_error=sentence)


def say(sentence: str) -> None:
    """Write a line for a person to the task's standard error."""
    try:
        os.write(2, f"holdfast: {images.clean_words(sentence)}\n".encode(errors="replace"))
    except OSError:
        pass  # the task runs on with a full disk


def _refuse(pull_error: str) -> NoReturn:
    raise NeverRan(RunnerStatus(phase="ended", pull_error=pull_error)) from None


class Puller:
    """Finds the image of one plan, or pulls it."""

    def __init__(self, folder: Path, plan: Plan, children: Children) -> None:
        self._folder = folder
        self._plan = plan
        self._children = children

    def find_or_pull(self) -> str:
        """Return the image's id, after a pull if it is needed. Raises NeverRan, Stopped,
        TimedOut, OSError."""
        plan = self._plan
        found = self._find_image(plan.image)
        if found and plan.pull != "always":
            return found
        if plan.pull == "never":
            _refuse(f"{plan.image} is not on this host, and the job never pulls it")
        lock = images.ImageLock(plan.locks, plan.image)
        try:
            return self._pull_alone(lock)
        finally:
            lock.close()

    def _find_image(self, image: str) -> str:
        runtime = self._plan.runtime
        code, text = self._children.run(runtime.find_image(image), STEP_SECONDS, may_stop=True)
        if code == 0:
            return text.strip().splitlines()[-1].strip()
        if images.is_missing(text):
            return ""
        words = images.read_last_words(text)
        raise NeverRan(make_failure(f"{runtime.kind} cannot look for {image}: {words}"))

    def _pull_alone(self, lock: images.ImageLock) -> str:
        """Pull the image while no other task does, or use the outcome of another task's pull
        (PULL-1)."""
        plan = self._plan
        since = read_boottime()
        write_status(self._folder, RunnerStatus(phase="pulling"))
        said = False
        while not lock.try_take():
            if not said:
                said = True
                say(f"another task pulls {plan.image}; waiting for it")
            self._pause(_LOCK_SECONDS)
        outcome = lock.read_outcome(since) if said else None
        if outcome is not None and outcome.error:
            _refuse(outcome.error)
        if outcome is not None or plan.pull == "missing":
            found = self._find_image(plan.image)
            if found:
                return found
        slot = images.try_take_slot(plan.locks, plan.pulls_at_once)
        if slot is None:
            say(f"{plan.pulls_at_once} other images are being pulled; waiting")
        while slot is None:
            self._pause(_LOCK_SECONDS)
            slot = images.try_take_slot(plan.locks, plan.pulls_at_once)
        try:
            found = self._pull()
        except NeverRan as failed:
            error = failed.status.pull_error or "it failed"
            lock.note_outcome(images.PullOutcome(at=read_boottime(), error=error))
            raise
        finally:
            os.close(slot)
        lock.note_outcome(images.PullOutcome(at=read_boottime()))
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
        name = plan.image
        try:
            code, text = self._pull_name(name, give_up_at)
            other = images.qualify(name, text) if code else None
            if other is not None:
                name = other
                say(f"pulling {name}")
                code, text = self._pull_name(name, give_up_at)
        except TimedOut as late:
            last = images.read_last_words(late.text)
            _refuse(f"the pull of {name} timed out after {plan.pull_seconds:g} s; last: {last}")
        except Stopped:
            say(f"the pull of {name} was stopped")
            raise
        if code:
            sentence = f"{name} could not be pulled: {images.read_last_words(text)}"
            if images.is_engine_away(text):
                raise NeverRan(make_failure(sentence))
            _refuse(sentence)
        found = self._find_image(name)
        if not found:
            _refuse(f"{name} was pulled, and is not there")
        say(f"pulled {name} in {time.monotonic() - began:.1f} s")
        return found

    def _pull_name(self, name: str, give_up_at: float) -> tuple[int, str]:
        said, said_at = "", time.monotonic()

        def tell(text: str) -> None:
            nonlocal said, said_at
            words = images.describe_progress(text)
            if words and words != said and time.monotonic() - said_at >= _SAY_SECONDS:
                said, said_at = words, time.monotonic()
                say(f"pulling {name}: {words}, {time.monotonic() - began:.0f} s")

        began = time.monotonic()
        seconds = max(0.0, give_up_at - began)
        return self._children.run(self._plan.runtime.pull(name), seconds, may_stop=True, each=tell)
