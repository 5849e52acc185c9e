"""Make a job's Python environment before its program starts, once for all jobs that want the same.

`python -m holdfast.work.setup PLAN -- PROGRAM ARG…` runs in the place of the program, as a part of the
task: what it prints is in the task's log, and the task's limits hold for it. Then it becomes the
program.

SETUP-1  An environment is made once per host, project and key: one job makes it under a lock, the
         others wait. It is there only when it is whole, and is read-only then. The key is made of
         the command, the interpreter, the platform, the image of a container, and the contents of
         the files that it reads. In a container this file runs alone, by a Python of the image, and
         the environment has the image's packages besides its own.
SETUP-2  Each program holds a shared lock on its environment as long as it runs, so that only unused
         ones are deleted: those that were not used for `KEEP_DAYS`, and all but the `MOST` newest.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

DEFAULT_FILES = ("requirements*.txt", "pyproject.toml", "uv.lock", "environment.y*ml")
KEEP_DAYS = 14.0
MOST = 16
OLD_DAYS = 30.0
EXIT_FAILED = 1
READY = "ready.json"


class SetupFailed(Exception):
    """The environment could not be made; the sentence says why."""


def find_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files that an environment is made of, by name. Patterns match names in the
    folder, or paths below it where they have a slash."""
    found = set()
    for pattern in patterns or DEFAULT_FILES:
        if "/" in pattern:
            found |= {path for path in folder.glob(pattern) if path.is_file()}
        else:
            with os.scandir(folder) as entries:
                names = [e.name for e in entries if e.is_file()]
            found |= {folder / name for name in fnmatch.filter(names, pattern)}
    return sorted(found)


def make_key(
    command: str, python: str, files: Sequence[tuple[str, bytes]], machine: Sequence[str]
) -> str:
    """Return the key of an environment. python: names the interpreter with its version. files: names
    and contents."""
    hashed = [(name, hashlib.sha256(data).hexdigest()) for name, data in files]
    words = json.dumps([1, command, python, hashed, list(machine)])
    return hashlib.sha256(words.encode()).hexdigest()[:32]


def main(words: Sequence[str]) -> int:
    """Make the environment and become the program; return an exit code where that fails."""
    plan = json.loads(Path(words[0]).read_bytes())
    argv = list(words[words.index("--") + 1 :])
    try:
        env = prepare(plan, Path.cwd(), os.environ)
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


def prepare(plan: Mapping[str, Any], folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the program, once its environment is there. Raises SetupFailed,
    OSError."""
    root = Path(plan["root"])
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    boxed = bool(plan.get("image"))
    python, make = choose_python(plan.get("python") or "", environ, boxed=boxed)
    files = find_files(folder, plan.get("files") or ())
    contents = [(str(path.relative_to(folder)), path.read_bytes()) for path in files]
    machine = [platform.machine(), *platform.libc_ver()]
    machine += [environ.get("HOLDFAST_IMAGE_ID") or plan["image"]] * boxed
    key = make_key(plan.get("setup") or "", python, contents, machine)
    lock = open(root / f"{key}.lock", "a")  # noqa: SIM115  # held until the program ends
    _lock(lock.fileno(), root, key)
    env = name_environment(root / key / "venv", environ)
    if not (root / key / READY).is_file():
        build(root / key, make, plan.get("setup") or "", env)
        prune(root, key)
    else:
        tell_age(root / key)
    os.utime(root / key / READY)
    fcntl.flock(lock, fcntl.LOCK_SH)  # SETUP-2
    os.set_inheritable(lock.fileno(), True)
    return env


def _lock(fd: int, root: Path, key: str) -> None:
    """Take the environment's lock: shared if it is there, else alone (SETUP-1)."""
    if (root / key / READY).is_file():
        fcntl.flock(fd, fcntl.LOCK_SH)
        if (root / key / READY).is_file():
            return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("holdfast: another job makes the same environment; waiting for it", flush=True)
        fcntl.flock(fd, fcntl.LOCK_EX)


def choose_python(
    version: str, environ: Mapping[str, str], *, boxed: bool = False
) -> tuple[str, list[str]]:
    """Return the interpreter's name with its version, and the command that makes an environment
    with it; the path of the environment's folder is to be added at the end. boxed: it is made in a
    container, over the image's packages. Raises SetupFailed."""
    more = ["--system-site-packages"] if boxed else []
    path = environ.get("PATH", os.defpath)
    uv = shutil.which("uv", path=path)
    if version and uv:
        return f"uv {version}", [uv, "venv", "--seed", "--quiet", *more, "--python", version]
    names = (f"python{version}",) if version else ("python3", "python")
    found = next((p for p in (shutil.which(n, path=path) for n in names) if p), None)
    if found is None:
        what = f"Python {version}, and no uv that would fetch it" if version else "Python"
        raise SetupFailed(f"this {'image' if boxed else 'host'} has no {what}")
    asked = [found, "-c", "import sys; print(sys.version)"]
    said = subprocess.run(asked, capture_output=True, text=True, env=dict(environ)).stdout
    name = f"{os.path.realpath(found)} {said.strip()}"
    if uv:
        return name, [uv, "venv", "--seed", "--quiet", *more, "--python", found]
    if boxed and subprocess.run([found, "-c", "import ensurepip"], capture_output=True).returncode:
        more.append("--without-pip")  # `python -m pip` of the image installs into it all the same
    return name, [found, "-m", "venv", *more]


def name_environment(venv: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program that runs in an environment."""
    env = {name: value for name, value in environ.items() if name != "PYTHONHOME"}
    path = env.get("PATH", os.defpath)
    return {**env, "VIRTUAL_ENV": str(venv), "PATH": f"{venv}/bin{os.pathsep}{path}"}


def build(folder: Path, make: Sequence[str], command: str, env: Mapping[str, str]) -> None:
    """Make an environment, whole or not at all. Raises SetupFailed, OSError."""
    _remove(folder)
    folder.mkdir(mode=0o700)
    began = time.monotonic()
    print(f"holdfast: making the environment {folder.name}", flush=True)
    try:
        plain = {n: v for n, v in env.items() if n != "VIRTUAL_ENV"}
        _run("the environment", [*make, str(folder / "venv")], plain)
        if command:
            _run("--setup", ["/bin/sh", "-c", command], {"UV_COMPILE_BYTECODE": "1", **env})
        for base, _, names in os.walk(folder / "venv"):
            for path in (base, *(os.path.join(base, name) for name in names)):
                if not os.path.islink(path):
                    os.chmod(path, os.stat(path).st_mode & 0o555)
        (folder / READY).write_text(json.dumps({"made_at": time.time(), "setup": command}))
    except BaseException:
        _remove(folder)
        raise
    print(f"holdfast: the environment is ready ({time.monotonic() - began:.1f} s)", flush=True)


def _run(what: str, argv: Sequence[str], env: Mapping[str, str]) -> None:
    code = subprocess.run(argv, env=dict(env), stdin=subprocess.DEVNULL).returncode
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise SetupFailed(
            f"{what} could not be made ready: {' '.join(argv)[:300]!r} ended with {how}"
        )


def tell_age(folder: Path) -> None:
    """Say in the log that an environment was made long ago; `why` finds this line
    (`core.bundles.code.find_old_environment`)."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        days = (time.time() - json.loads((folder / READY).read_bytes())["made_at"]) / 86_400
        if days >= OLD_DAYS:
            print(
                f"holdfast: the environment {folder.name} was made {days:.0f} days ago", flush=True
            )


def prune(root: Path, present: str) -> None:
    """Delete environments that no program uses (SETUP-2)."""
    found = []
    for ready in root.glob(f"*/{READY}"):
        with contextlib.suppress(OSError):
            found.append((ready.stat().st_mtime, ready.parent))
    found.sort(reverse=True)
    before = time.time() - KEEP_DAYS * 86_400
    for number, (used_at, folder) in enumerate(found):
        if folder.name == present or (number < MOST and used_at >= before):
            continue
        with contextlib.suppress(OSError), open(root / f"{folder.name}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / READY).unlink()
            _remove(folder)


def _remove(folder: Path) -> None:
    for base, _, _ in os.walk(folder):
        os.chmod(base, 0o700)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
