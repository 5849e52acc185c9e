"""Find what an environment is made of: before the making what the command names, afterwards what it
read.

INPUT-1  What can be known beforehand is in the key: the command, the interpreter, the machine, the
         image, the variables of GIVEN-1, the files of the patterns, the files that the command, a
         variable or a file among these names, and the configurations of installers. Each is there
         as a digest under a secret of this host, so that a key gives no value away.
INPUT-2  What the making turned out to depend on is recorded beside the environment: each file of the
         folder that it read, which the access times of its own copy show, and what an install of a
         local folder or file was made from. Another job gets the environment only if all this is
         the same for it.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

DEFAULT_FILES = (
    "requirements*.txt", "constraints*.txt", "pyproject.toml", "setup.py", "setup.cfg", "uv.lock", "uv.toml",
    "poetry.lock", "pdm.lock", "pylock*.toml", "Pipfile", "Pipfile.lock", "pixi.toml", "pixi.lock",
    "environment.y*ml", "conda-lock.y*ml", ".python-version",
)  # fmt: skip
_CONFIGURATIONS = (
    "/etc/pip.conf", "/etc/xdg/pip/pip.conf", "/etc/uv/uv.toml", "/etc/xdg/uv/uv.toml", "/etc/conda/.condarc",
    "~/.pip/pip.conf", "~/.netrc", "~/.condarc", "~/.mambarc", "~/.pydistutils.cfg",
    "@/pip/pip.conf", "@/uv/uv.toml", "@/pypoetry/config.toml", "@/pypoetry/auth.toml", "@/pdm/config.toml",
    "@/conda/.condarc",
)  # fmt: skip
_FOLLOWED = (".txt", ".in", ".conf", ".cfg", ".yml", ".yaml", ".sh", ".toml", "")
_NOT_FOLLOWED = ("pyproject.toml", "setup.cfg")  # their words name what is read only at times
_SPLIT = re.compile(r"[\s\"'`=;,&|<>(){}@]+")
_MOST_FILES, _MOST_BYTES, _MOST_WORDS = 500, 8 << 20, 20_000
_MOST_OUTSIDE, _MOST_PLACES = 20_000, 20
SECRET_FILE = "digests.key"


def open_secret(root: Path) -> bytes:
    """Return the secret of a folder's digests; make it where there is none. Raises OSError."""
    path = root / SECRET_FILE
    part = root / f".{SECRET_FILE}.{os.getpid()}"
    if not path.exists():
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(32))
        with contextlib.suppress(FileExistsError):  # another job was faster
            os.link(part, path)
        part.unlink()
    return path.read_bytes()


class Digests:
    """Makes digests under a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def of(self, data: bytes) -> str:
        """Return the digest of bytes."""
        return hmac.new(self._secret, data, hashlib.sha256).hexdigest()

    def of_file(self, path: Path) -> str:
        """Return the digest of a file's contents, also where a link leads there, or of the link
        itself where it leads to no file; "" where there is nothing."""
        digest = hmac.new(self._secret, digestmod=hashlib.sha256)
        try:
            if path.is_symlink() and not path.is_file():
                return self.of(b"link " + os.fsencode(os.readlink(path)))
            with open(path, "rb") as file:
                while data := file.read(1 << 20):
                    digest.update(data)
        except OSError:
            return ""
        return digest.hexdigest()


def find_files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Return the files that patterns name. Patterns match names in the folder, or paths below it
    where they have a slash."""
    found = set()
    for pattern in patterns or DEFAULT_FILES:
        if "/" in pattern:
            found |= {path for path in folder.glob(pattern) if path.is_file()}
        else:
            with os.scandir(folder) as entries:
                names = [e.name for e in entries if e.is_file()]
            found |= {folder / name for name in fnmatch.filter(names, pattern)}
            found |= {folder / pattern} if (folder / pattern).is_file() else set()
    return sorted(found)


def find_configurations(environ: Mapping[str, str]) -> list[Path]:
    """Return the files that configure installers, those that are there."""
    home = environ.get("HOME", "/")
    own = environ.get("XDG_CONFIG_HOME") or f"{home}/.config"
    paths = [Path(p.replace("~", home, 1).replace("@", own, 1)) for p in _CONFIGURATIONS]
    return [path for path in paths if path.is_file()]


def find_named(
    folder: Path, words: Iterable[str], files: Iterable[Path]
) -> Iterator[tuple[Path, str]]:
    """Yield each file with its text: `files`, the files that `words` name, and those that their
    texts name in turn. Relative names count from the folder, from a folder that `words` name, or
    from the file that has them."""
    seen = set[Path]()
    waiting = [(path, path.name not in _NOT_FOLLOWED) for path in files]
    for text in words:
        places = [folder / word for word in _SPLIT.split(text) if os.path.isdir(folder / word)]
        waiting += [(path, True) for path in _list_named(text, (folder, *places[:_MOST_PLACES]))]
    while waiting and len(seen) < _MOST_FILES:
        path, follows = waiting.pop()
        path = Path(os.path.normpath(path))
        if path in seen:
            continue
        seen.add(path)
        text = _read_text(path)
        yield path, text
        if follows and path.suffix in _FOLLOWED:
            waiting += [(found, True) for found in _list_named(text, (path.parent, folder))]


def _read_text(path: Path) -> str:
    try:
        data = path.read_bytes() if path.stat().st_size <= _MOST_BYTES else b""
    except OSError:
        return ""
    return "" if b"\0" in data[:4096] else data.decode(errors="replace")


def _list_named(text: str, folders: Sequence[Path]) -> list[Path]:
    found = []
    for raw in _SPLIT.split(text)[:_MOST_WORDS]:
        word = raw.removeprefix("file:")
        word = word[2:] if word.startswith("//") else word
        word = re.sub(r"^-[rcef](?=[^-])", "", word)  # -rrequirements.txt
        word = re.sub(r"\[[^]]*\]$|#.*$|:$", "", word)
        if not word or len(word) > 1024 or word in (".", "..", "/"):
            continue
        for folder in folders:
            path = os.path.join(folder, word)
            if any(mark in word for mark in "*?["):
                found += [Path(p) for p in glob.glob(path)[:_MOST_FILES] if os.path.isfile(p)]
            elif os.path.isfile(path):
                found.append(Path(path))
    return [path for path in found if not str(path).startswith(("/dev/", "/proc/", "/sys/"))]


def make_key(parts: Mapping[str, object]) -> str:
    """Return the key of the environments that are made of these parts (INPUT-1)."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:24]


def describe_outside(path: Path) -> str:
    """Return a digest of the sizes and times of a file, or of all files of a folder, that is not
    the job's own."""
    lines = []
    if path.is_dir():
        for base, folders, names in os.walk(path):
            folders[:] = sorted(f for f in folders if f not in (".git", "__pycache__"))
            for name in sorted(names):
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(base, name))
                    lines.append(f"{base}/{name} {status.st_size} {status.st_mtime_ns}")
            if len(lines) > _MOST_OUTSIDE:
                break
    elif path.exists():
        status = path.stat()
        lines.append(f"{status.st_size} {status.st_mtime_ns}")
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def list_names(paths: Iterable[str], folder: str) -> str:
    """Return the names in one folder of the code, as one text."""
    start = f"{folder}/" if folder else ""
    names = {p.removeprefix(start).partition("/")[0] for p in paths if p.startswith(start)}
    return "\n".join(sorted(names))


class Inputs:
    """The files and folders that the making of one environment read (INPUT-2).

    files: paths below the job's folder, with the digests of their contents. listings: folders below
    it, with the digests of the names in them. outside: other paths, with digests of their sizes and
    times. present: paths below the folder that the making left there, where the folder is not the
    job's own.
    """

    def __init__(self) -> None:
        self.files = dict[str, str]()
        self.listings = dict[str, str]()
        self.outside = dict[str, str]()
        self.present = list[str]()

    @classmethod
    def load(cls, told: Mapping[str, object]) -> Inputs:
        """Return the inputs that `dump` wrote. Raises TypeError, ValueError, KeyError."""
        found = cls()
        for name, value in told.items():
            setattr(found, name, value)
        return found

    def dump(self) -> dict[str, object]:
        """Return the inputs as plain values."""
        return dict(vars(self))

    def find_change(self, folder: Path, code: Sequence[str], digests: Digests) -> str | None:
        """Return what is other for a job in this folder; None where all is the same."""
        for name, digest in self.files.items():
            if digests.of_file(folder / name) != digest:
                return name
        for name, digest in self.listings.items():
            if digests.of(list_names(code, name).encode(errors="surrogateescape")) != digest:
                return f"the names in {name or 'the folder'}"
        for name, digest in self.outside.items():
            if describe_outside(Path(name)) != digest:
                return name
        return next((n for n in self.present if not os.path.lexists(folder / n)), None)
