"""Make a job's Python environment before its program starts, once for all jobs that want the same.

`python holdfast-making.zip PLAN -- PROGRAM ARG…` runs in the place of the program, as a part of the
task: what it prints is in the task's log, and the task's limits hold for it. Then it becomes the
program.

SETUP-1  An environment is made once per host, project and key: one job makes it under a lock, the
         others wait. It is there only when it is whole, and is read-only then. In a container the
         zip runs by a Python of the image, and the environment has the image's packages besides its
         own.
SETUP-2  The making, and the wait for another job's, has a limit of its own. The program begins when
         the file `made` of the plan is written; until then no watchdog judges the task.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.work.making import kept, say
from holdfast.work.making.build import CONDA, SOURCE, VENV, Builder, SetupFailed, choose_python
from holdfast.work.making.copying import remove_tree
from holdfast.work.making.inputs import (
    Digests,
    Inputs,
    describe_outside,
    find_configurations,
    find_files,
    find_named,
    make_key,
    open_secret,
)
from holdfast.work.making.variables import choose_variables

EXIT_FAILED = 1
_FORMAT = 2
_STAT_BYTES = 8 << 20


def main(words: Sequence[str]) -> int:
    """Make the environment and become the program; return an exit code where that fails."""
    plan = json.loads(Path(words[0]).read_bytes())
    argv = list(words[words.index("--") + 1 :])
    try:
        with limit(plan["seconds"]):
            env = Setup(plan, Path.cwd(), os.environ).prepare()
        Path(plan["made"]).write_text(f"{time.clock_gettime(time.CLOCK_BOOTTIME):.3f}\n")
    except (SetupFailed, OSError) as error:
        sentence = str(error)[:4000]
        print(f"holdfast: {sentence}", file=sys.stderr, flush=True)
        Path(plan["failed"]).write_text(sentence)
        return EXIT_FAILED
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        print(f"holdfast: {argv[0]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise SetupFailed inside once so many seconds have passed (SETUP-2)."""

    def stop(_: int, __: object) -> None:
        raise SetupFailed(
            f"the environment was not ready within {seconds:g} s, the wait for another job's making "
            "included; a longer --setup-timeout (setup_seconds) allows more"
        )

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Setup:
    """The environment that one job asks for. home: the job's folder. environ: the variables of its program."""

    def __init__(self, plan: Mapping[str, Any], home: Path, environ: Mapping[str, str]) -> None:
        self._plan, self._home, self._environ = plan, home, environ
        self._root = Path(plan["root"])
        self._boxed = bool(plan.get("image"))
        self._command = plan.get("setup") or ""
        self._code = _read_code(plan.get("code") or "")

    def prepare(self) -> dict[str, str]:
        """Return the variables of the program, once its environment is there. Raises SetupFailed,
        OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._digests = Digests(open_secret(self._root))
        bare = {n: v for n, v in self._environ.items() if not n.startswith("PYTHON")}
        self._python = choose_python(self._plan.get("python") or "", bare, boxed=self._boxed)
        key = self._make_key()
        folder, told, lock = self._find(key) or self._make(key)
        kept.tell_age(folder, told)
        os.utime(folder / kept.READY)
        os.set_inheritable(lock, True)  # KEPT-1
        kept.hand_on(folder, told, self._home)
        return self._name(folder, told)

    def _make_key(self) -> str:
        given = self._plan.get("given") or ()
        first = choose_variables(self._environ, given, [self._command], boxed=self._boxed)[1]
        files = [
            *find_files(self._home, self._plan.get("files") or ()),
            *find_configurations(self._environ),
        ]
        words = [self._command, *(v for n, v in first.items() if not n.endswith("PATH"))]
        read = dict(find_named(self._home, words, files))
        texts = [self._command, *read.values()]
        self._passed, counted = choose_variables(self._environ, given, texts, boxed=self._boxed)
        machine = [platform.machine(), *platform.libc_ver()]
        if self._boxed:
            machine.append(self._environ.get("HOLDFAST_IMAGE_ID") or self._plan["image"])
        place = "" if self._code is not None else str(self._home)
        return make_key(
            {
                "format": _FORMAT,
                "command": self._command,
                "python": self._python.name,
                "machine": machine,
                "place": place,
                "variables": {
                    n: self._digests.of(f"{n}={v}".encode(errors="surrogateescape"))
                    for n, v in counted.items()
                },
                "files": dict(self._describe(path) for path in read),
            }
        )

    def _describe(self, path: Path) -> tuple[str, str]:
        """Return a file's name and digest for the key."""
        if path.is_relative_to(self._home):
            return str(path.relative_to(self._home)), self._digests.of_file(path)
        is_large = path.stat().st_size > _STAT_BYTES
        return str(path), describe_outside(path) if is_large else self._digests.of_file(path)

    def _find(self, key: str) -> tuple[Path, dict[str, Any], int] | None:
        """Return an environment that is there for this job, what is known of it, and its lock."""
        why = ""
        for folder in kept.list_kept(self._root, key):
            lock = kept.share(folder)
            if lock is None:
                continue
            told = kept.read_ready(folder)
            if told is not None:
                found = Inputs.load(told["inputs"])
                change = found.find_change(self._home, self._code or (), self._digests)
                if change is None and kept.describe(folder)[0] == told["stat"]:
                    return folder, told, lock
                if change is None:
                    kept.discard(folder)
                    why = f"the environment {folder.name} was changed after it was made"
                else:
                    why = why or f"{change} is not as it was for the environment {folder.name}"
            os.close(lock)
        if why:
            say(f"{why}, so it is made anew")
        return None

    def _make(self, key: str) -> tuple[Path, dict[str, Any], int]:
        """Make an environment, whole or not at all, unless another job has just made it."""
        making = kept.open_lock(self._root, key)
        try:
            try:
                fcntl.flock(making, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("another job makes the same environment; waiting for it")
                fcntl.flock(making, fcntl.LOCK_EX)
                if found := self._find(key):
                    return found
            there = kept.list_kept(self._root, key)
            number = int(there[0].name.rpartition("-")[2]) + 1 if there else 1
            folder = self._root / f"{key}-{number}"
            lock = kept.open_lock(self._root, folder.name)
            fcntl.flock(lock, fcntl.LOCK_EX)
            told = self._build(folder)
            fcntl.flock(lock, fcntl.LOCK_SH)
            kept.prune(self._root, folder)
            return folder, told, lock
        finally:
            os.close(making)

    def _build(self, folder: Path) -> dict[str, Any]:
        folder.mkdir(mode=0o700)
        began = time.monotonic()
        say(f"making the environment {folder.name}")
        self._tell_left_out()
        try:
            builder = Builder(folder, self._home, self._code, self._passed, self._digests)
            builder.build(self._python.make, self._command)
            stat, size = kept.describe(folder)
            told = {
                "made_at": time.time(),
                "setup": self._command,
                "inputs": builder.inputs.dump(),
                "linked": builder.linked,
                "copied": builder.copied,
                "changed": [n for n in builder.copied if n in (self._code or ())],
                "stat": stat,
            }
            kept.write_ready(folder, told)
        except BaseException:
            remove_tree(folder)
            raise
        took = time.monotonic() - began
        say(f"the environment is ready ({took:.1f} s, {size / 2**20:.0f} MiB)")
        return told

    def _tell_left_out(self) -> None:
        """Say which of the user's variables the making is not given (GIVEN-1)."""
        left = sorted(n for n in self._plan.get("given") or () if n not in self._passed)
        if left and self._command:
            names = ", ".join(left[:8]) + (", …" if len(left) > 8 else "")
            say(f"the making is not given {names}; a --setup line that names a variable is")

    def _name(self, folder: Path, told: dict[str, Any]) -> dict[str, str]:
        """Return the variables of a program that runs in an environment. The line's own `.venv`,
        where it made one, comes first."""
        shell = () if self._boxed else ("PYTHONPATH",)  # of the shell that started the agent
        given = self._plan.get("given") or ()
        env = {
            n: v
            for n, v in self._environ.items()
            if n != "PYTHONHOME" and (n in given or n not in shell)
        }
        places = [folder / VENV]
        if (own := _find_own(told["linked"])) is not None:
            linked = self._home / own
            places.insert(0, linked if linked.is_symlink() else folder / SOURCE / own)
            if own == ".venv":
                env.setdefault("UV_NO_SYNC", "1")  # `uv run` would want to write there
        path = [f"{place}/bin" for place in places]
        env["VIRTUAL_ENV"] = str(places[0])
        env["PATH"] = os.pathsep.join([*path, env.get("PATH", os.defpath)])
        if (folder / CONDA).is_dir():
            env.setdefault("CONDA_ENVS_DIRS", str(folder / CONDA))
        return env


def _find_own(linked: Sequence[str]) -> str | None:
    if ".venv" in linked:
        return ".venv"
    return linked[0] if len(linked) == 1 else None


def _read_code(path: str) -> list[str] | None:
    """Return the paths of the job's code; None where it has no folder of its own."""
    if not path:
        return None
    data = Path(path).read_bytes()
    return [os.fsdecode(name) for name in data.split(b"\0") if name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
