"""Make one environment: in a folder of its own, by an interpreter that imports nothing of the job.

BUILD-1  The line runs in a copy of the job's code, below the environment. What the line leaves there
         belongs to the environment: other environments (`.venv`) are linked into each job's folder,
         all else is copied there. A job with a `cwd` has no folder of its own, so the line runs in
         that one.
BUILD-2  The interpreter that makes the environment, and each question to it, is isolated (`-I`) and
         runs outside of the code, so no file of the job shadows a module. The user's line is not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.work.making import say
from holdfast.work.making.copying import can_clone, copy_file, copy_tree, remove_tree
from holdfast.work.making.inputs import Digests, Inputs, describe_outside, list_names
from holdfast.work.making.links import (
    find_copied,
    find_environments,
    find_leads,
    find_local,
    find_packages,
    own_all,
    relink,
)

VENV, SOURCE, CONDA = "venv", "src", "conda"
GIT = ".git"
_READ_GIT = f"{GIT}/HEAD"


class SetupFailed(Exception):
    """The environment could not be made; the sentence says why."""


class Python:
    """An interpreter. name: its path with its version. make: the command that makes an environment
    with it; the path of the environment's folder is to be added at the end."""

    def __init__(self, name: str, make: Sequence[str]) -> None:
        self.name = name
        self.make = list(make)


def choose_python(version: str, environ: Mapping[str, str], *, boxed: bool = False) -> Python:
    """Return the interpreter for a version, or the first one that is found. boxed: the environment
    is made in a container, over the image's packages. Raises SetupFailed."""
    more = ["--system-site-packages"] if boxed else []
    path = environ.get("PATH", os.defpath)
    uv = shutil.which("uv", path=path)
    if version and uv:
        return Python(
            f"uv {version}", [uv, "venv", "--seed", "--quiet", *more, "--python", version]
        )
    names = (f"python{version}",) if version else ("python3", "python")
    found = next((p for p in (shutil.which(n, path=path) for n in names) if p), None)
    if found is None:
        what = f"Python {version}, and no uv that would fetch it" if version else "Python"
        raise SetupFailed(f"this {'image' if boxed else 'host'} has no {what}")
    asked = [found, "-I", "-c", "import sys; print(sys.executable); print(sys.version)"]
    said = subprocess.run(asked, capture_output=True, text=True, env=dict(environ))
    own, _, text = said.stdout.strip().partition("\n")
    if said.returncode or not own:
        raise SetupFailed(f"{found} does not run: {said.stderr.strip()[-300:]}")
    name = f"{os.path.realpath(own)} {text}"
    if uv:
        return Python(name, [uv, "venv", "--seed", "--quiet", *more, "--python", own])
    if (
        boxed
        and subprocess.run([own, "-I", "-c", "import ensurepip"], capture_output=True).returncode
    ):
        more.append("--without-pip")  # `python -m pip` of the image installs into it all the same
    return Python(name, [own, "-I", "-m", "venv", *more])


class Builder:
    """Makes one environment.

    folder: where it is made. home: the job's folder. code: the paths of the job's code below
    `home`, None where `home` is not the job's own. variables: those that the making is given.
    """

    def __init__(
        self,
        folder: Path,
        home: Path,
        code: Sequence[str] | None,
        variables: Mapping[str, str],
        digests: Digests,
    ) -> None:
        self._folder, self._home, self._code = folder, home, code
        self._venv, self._source = folder / VENV, folder / SOURCE
        self._variables = dict(variables)
        self._digests = digests
        self._laid = dict[str, tuple[int, int]]()
        self._sees_reads = self._clones = False
        self.inputs = Inputs()
        self.linked, self.copied = list[str](), list[str]()

    def build(self, make: Sequence[str], command: str) -> None:
        """Make the environment and find what it was made of. Raises SetupFailed, OSError."""
        _run("the environment", [*make, str(self._venv)], self._variables, self._folder)
        if command:
            self._run_line(command)
        environments = [self._venv, *find_environments(self._folder / CONDA, depth=1)]
        inner = find_environments(self._source) if self._code is not None else []
        packages = [p for one in (*environments, *inner) for p in find_packages(one)]
        read, changed = self._find_reads()
        if self._code is not None:
            self._find_products(inner, changed)
            self._judge_installs(packages, inner, read)
        else:
            self._judge_outside(packages)
        own_all(self._folder, packages)
        for one in (*environments, *inner):
            self._compile(one)
        self._close()

    # ---- before

    def _run_line(self, command: str) -> None:
        self._clones = can_clone(self._folder)
        link_mode = "clone" if self._clones else "copy"
        env = {
            "UV_COMPILE_BYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            "CONDA_ENVS_DIRS": str(self._folder / CONDA),
            **self._variables,
            "UV_LINK_MODE": link_mode,
            "CONDA_ALWAYS_COPY": "true",
            "MAMBA_ALWAYS_COPY": "true",
            "VIRTUAL_ENV": str(self._venv),
            "PATH": f"{self._venv}/bin{os.pathsep}{self._variables.get('PATH', os.defpath)}",
        }
        if self._code is None:
            before = set(find_environments(self._home, depth=1))
            _run("--setup", ["/bin/sh", "-c", command], env, self._home)
            new = [p for p in find_environments(self._home, depth=1) if p not in before]
            self.inputs.present = [str(path.relative_to(self._home)) for path in new]
            return
        self._copy_code(self._code)
        _run("--setup", ["/bin/sh", "-c", command], env, self._source)

    def _copy_code(self, code: Sequence[str]) -> None:
        """Copy the code, with access times by which reads show (INPUT-2)."""
        self._source.mkdir()
        for name in code:
            old, new = self._home / name, self._source / name
            if not os.path.lexists(old):
                continue
            new.parent.mkdir(parents=True, exist_ok=True)
            if name == GIT and old.is_dir():
                copy_tree(old, new)
                name, old, new = _READ_GIT, self._home / _READ_GIT, self._source / _READ_GIT
            else:
                copy_file(old, new)
            status = _forget_reads(new)
            self._laid[name] = status.st_size, status.st_mtime_ns
        trial = self._folder / ".trial"
        trial.write_bytes(b"x")
        _forget_reads(trial)
        trial.read_bytes()
        self._sees_reads = trial.stat().st_atime_ns != 0
        trial.unlink()
        if not self._sees_reads:
            say(
                "this host's disk notes no reads (noatime), so the environment depends on the files "
                "that --setup-files and the line name, and on local installs as a whole"
            )

    # ---- after

    def _find_reads(self) -> tuple[list[str], set[str]]:
        """Return the names of the code that were read, and those that were changed."""
        read, changed = list[str](), set[str]()
        for name, before in self._laid.items():
            try:
                status = os.lstat(self._source / name)
            except OSError:
                continue  # the line deleted it
            if (status.st_size, status.st_mtime_ns) != before:
                changed.add(name)
            if status.st_nlink > 1 or (self._sees_reads and status.st_atime_ns != 0):
                read.append(name)
        if self._clones:
            unread = {
                n: p
                for n in self._laid.keys() - {*read, *changed}
                if (p := self._source / n).is_file()
            }
            read += sorted(find_copied([self._venv, self._folder / CONDA], unread))
        for name in read:
            self.inputs.files[name] = self._digests.of_file(self._home / name)
        return read, changed

    def _find_products(self, inner: Sequence[Path], changed: set[str]) -> None:
        """Note what the line left beside the code (BUILD-1)."""
        own = {str(path) for path in inner}
        laid = {name for name in self._laid if name not in changed}
        for base, folders, names in os.walk(self._source):
            at = Path(base).relative_to(self._source)
            for name in list(folders):
                path, below = Path(base, name), str(at / name)
                if str(path) in own:
                    self.linked.append(below)
                    folders.remove(name)
                elif name == "__pycache__" or below == GIT:
                    folders.remove(name)
                elif path.is_symlink() and below not in laid:
                    self.copied.append(below)
            self.copied += [n for name in names if (n := str(at / name)) not in laid]

    def _judge_installs(
        self, packages: Sequence[Path], inner: Sequence[Path], read: Sequence[str]
    ) -> None:
        """Relink what points into the code, or make it an input; record what local installs were
        made from, and drop the code where nothing needs it any more."""
        left = set[str]()
        for one in (self._venv, self._folder / CONDA):
            left |= find_leads(one, self._source, list(inner))
        for one in packages:
            left |= relink(one, self._source, list(inner))
            for path, editable in find_local(one):
                if not path.is_relative_to(self._source):
                    self._note_outside(path, editable)
                elif not editable:
                    self._note_install(str(path.relative_to(self._source)), read)
        for top in left:
            self._note_files(top)
        if not left:
            for name in self._laid.keys() - set(self.copied):
                (self._source / name).unlink(missing_ok=True)
            remove_tree(self._source / GIT)

    def _judge_outside(self, packages: Sequence[Path]) -> None:
        """Record what local installs were made from, where the line ran in a folder of others."""
        for one in packages:
            for path, editable in find_local(one):
                self._note_outside(path, editable)

    def _note_outside(self, path: Path, editable: bool) -> None:
        if not editable:  # an editable one is the folder itself, whose code each job imports
            self.inputs.outside[str(path)] = describe_outside(path)

    def _note_install(self, top: str, read: Sequence[str]) -> None:
        """Record what a local folder or file of the code was installed from: the files that were
        read and the names beside them; all of its files where reads are not seen."""
        top = "" if top == "." else top
        if not self._sees_reads:
            self._note_files(top)
            return
        for name in read:
            folder = name.rpartition("/")[0]
            if not top or name.startswith(f"{top}/"):
                names = list_names(self._code or (), folder)
                self.inputs.listings[folder] = self._digests.of(
                    names.encode(errors="surrogateescape")
                )

    def _note_files(self, top: str) -> None:
        for name in self._laid:
            if not top or name == top or name.startswith(f"{top}/"):
                self.inputs.files[name] = self._digests.of_file(self._home / name)

    def _compile(self, environment: Path) -> None:
        """Compile all modules, so that no program has a reason to write into the environment."""
        python, packages = environment / "bin/python", list(find_packages(environment))
        if python.exists() and packages:
            words = [str(python), "-I", "-m", "compileall", "-q", *map(str, packages)]
            subprocess.run(words, env=self._variables, capture_output=True)

    def _close(self) -> None:
        """Take all rights to write away."""
        for part in (VENV, SOURCE, CONDA):
            for base, _, names in os.walk(self._folder / part):
                for path in (base, *(os.path.join(base, name) for name in names)):
                    if not os.path.islink(path):
                        os.chmod(path, os.stat(path).st_mode & 0o555)


def _forget_reads(path: Path) -> os.stat_result:
    status = os.lstat(path)
    os.utime(path, ns=(0, status.st_mtime_ns), follow_symlinks=False)
    return status


def _run(what: str, argv: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
    done = subprocess.run(argv, env=dict(env), cwd=folder, stdin=subprocess.DEVNULL)
    if code := done.returncode:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise SetupFailed(
            f"{what} could not be made ready: {' '.join(argv)[:300]!r} ended with {how}"
        )
