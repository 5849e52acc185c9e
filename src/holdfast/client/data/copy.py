"""Copy files between here and a running task: resumed, and compared by their SHA-256.

COPY-1  A copy that broke off goes on where it stopped: over a new session, or by the same command
        again. At most `WINDOW_BYTES` are sent again for each break.
COPY-2  A file that arrived has the SHA-256 that it has on the other side, or the copy says that it
        has not. A source that changes meanwhile is begun anew, a few times.
COPY-3  Files that arrive here are written below the named folder alone (ARRIVE-1…3).
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from holdfast.client.data.arrive import Arrival, ArrivingFile
from holdfast.client.data.channel import FilesChannel, FilesRefused, Pipe
from holdfast.errors import NotFound, Unavailable, ValidationError

PIECE_BYTES = 256 << 10
WINDOW_BYTES = 2 << 20
MAX_FILES = 1_000_000
_TRIES = 3
_AGAIN_SECONDS = (0.1, 5.0)
MAGIC = re.compile(r"[*?\[]")


class _Chosen(NamedTuple):
    """The entries that a name stands for. base: the folder in front of the names that arrive."""

    base: str
    entries: list[dict[str, Any]]
    by_pattern: bool


class CopyProgress(msgspec.Struct, kw_only=True):
    """The progress of a copy. whole, done: bytes of files. files: the number of files that are
    done. kept: the number of files that were there already. left: names that are not copied, with
    the reason. breaks: how often the copy went on over a new session. path: the file that is copied
    now."""

    whole: int = 0
    done: int = 0
    files: int = 0
    kept: int = 0
    left: list[tuple[str, str]] = []
    breaks: int = 0
    path: str = ""


class _Changed(Exception):
    """Raised where a source changed while it was copied."""


class Copier:
    """Copies files of one task.

    connect: opens a session of kind `copy`. tell: called with the progress. patience_seconds: how
    long the copy tries to open a session again after one broke.
    """

    def __init__(
        self,
        connect: Callable[[], Pipe],
        *,
        tell: Callable[[CopyProgress], None] = lambda progress: None,
        patience_seconds: float = 600.0,
    ) -> None:
        self._connect = connect
        self._tell = tell
        self._patience_seconds = patience_seconds
        self._channel: FilesChannel | None = None
        self.progress = CopyProgress()
        self.carried = 0  # bytes over all sessions, both ways

    def close(self) -> None:
        """End the session."""
        if self._channel is not None:
            self.carried += self._channel.sent + self._channel.received
            self._channel.close()
            self._channel = None

    @property
    def channel(self) -> FilesChannel:
        """Return the line to the program that serves the task's files, over a new session where
        there is none."""
        if self._channel is None:
            self._channel = FilesChannel(self._connect())
        return self._channel

    def _keep_trying(self, work: Callable[[], None]) -> None:
        """Run `work`, which may be run again, over as many sessions as it takes (COPY-1)."""
        until, pause, last = time.monotonic() + self._patience_seconds, _AGAIN_SECONDS[0], -1
        while True:
            try:
                work()
                return
            except Unavailable:
                self.close()
                self.progress.breaks += 1
                if self.progress.done != last:  # it moves on, so its patience begins anew
                    last = self.progress.done
                    until, pause = time.monotonic() + self._patience_seconds, _AGAIN_SECONDS[0]
                if time.monotonic() >= until:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _AGAIN_SECONDS[1])

    # ---- from the task

    def fetch(self, paths: Sequence[str], to: str) -> CopyProgress:
        """Copy files and folders of the task to `to`. Raises HoldfastError, OSError."""
        found: list[_Chosen] = []
        self._keep_trying(lambda: found.extend(self._list(path) for path in paths[len(found) :]))
        many = len(found) > 1 or any(one.by_pattern for one in found)
        into = os.path.isdir(to) or to.endswith("/") or many
        self.progress.whole = sum(e.get("size", 0) for one in found for e in one.entries)
        for one in found:
            self._fetch_one(one.base, one.entries, to, into=into)
        self.close()
        return self.progress

    def _is_there(self, path: str) -> bool:
        try:
            self.channel.ask({"do": "stat", "path": path})
        except FilesRefused:
            return False
        return True

    def _list(self, path: str) -> _Chosen:
        """Return the entries that a name stands for. A name that is there is no pattern."""
        match = MAGIC.search(path)
        match = None if match and self._is_there(path) else match
        start = path[: path.rfind("/", 0, match.start()) + 1] if match else path
        entries: list[dict[str, Any]] = []
        for answer in self.channel.walk([start or "."], MAX_FILES):
            entries += answer.get("entries", ())
            self.progress.left += [(e["path"], e["left"]) for e in answer.get("left", ())]
        if match is None:
            if not entries:
                why = self.progress.left.pop()[1] if self.progress.left else "it is not there"
                raise NotFound(f"{path} cannot be copied: {why}", code="no_file")
            return _Chosen(os.path.dirname(path.rstrip("/")), entries, by_pattern=False)
        try:
            pattern = re.compile(_write_pattern(path.removeprefix("./")))
        except re.error as error:
            raise ValidationError(
                f"{path} is not there, and it is no pattern: {error.msg}", field="path"
            ) from None
        chosen = [e for e in entries if pattern.fullmatch(e["path"].removeprefix("./"))]
        if not chosen:
            raise NotFound(f"no file of the task is named {path}", code="no_file")
        return _Chosen(start.rstrip("/"), chosen, by_pattern=True)

    def _fetch_one(self, base: str, entries: list[dict[str, Any]], to: str, *, into: bool) -> None:
        """Write the entries that one name stands for."""
        top = entries[0]
        if into or top["kind"] == "folder":
            root, strip = to, base
            if not into:  # the folder itself gets the name `to`
                strip = top["path"]
            folder, rename = root, None
        else:
            folder, rename = os.path.dirname(to) or ".", os.path.basename(to)
            strip = base
        with Arrival(folder) as arrival:
            folders = []
            for entry in entries:
                name = os.fsencode(rename) if rename else _strip(entry["path"], strip)
                if not name:
                    continue
                self.progress.path = entry["path"]
                if entry["kind"] == "folder":
                    arrival.make_folder(name)
                    folders.append((name, entry["bits"]))
                elif entry["kind"] == "link":
                    if not arrival.make_link(name, os.fsencode(entry["target"])):
                        why = f"a link that leads out, to {entry['target']}"
                        self.progress.left.append((entry["path"], why))
                else:
                    self._fetch_file(arrival, name, entry)
            for name, bits in reversed(folders):
                arrival.set_bits(name, bits)

    def _fetch_file(self, arrival: Arrival, name: bytes, entry: dict[str, Any]) -> None:
        done = self.progress.done
        for _ in range(_TRIES):
            try:
                self._keep_trying(partial(self._fetch_bytes, arrival, name, entry, done))
            except _Changed:
                self.progress.done = done
                entry = self.channel.ask({"do": "stat", "path": entry["path"]})[0]
                continue
            except FilesRefused as error:
                self.progress.left.append((entry["path"], str(error)))
                return
            self.progress.files += 1
            return
        self.progress.left.append((entry["path"], "it changed each time that it was read"))

    def _fetch_bytes(self, arrival: Arrival, name: bytes, entry: dict[str, Any], done: int) -> None:
        size, sign, path = entry["size"], entry["sign"], entry["path"]
        file = arrival.begin(name, hashlib.sha256(repr((path, size, sign)).encode()).hexdigest())
        try:
            here = min(file.size, size)
            self.progress.done = done + here
            self._pull(file, path, here, size, sign, done)
            file.cut(size)
            theirs = self.channel.ask({"do": "digest", "path": path, "size": size})[0]["sha256"]
            if file.hash(size) != theirs:
                file.drop()
                raise _Changed
        except BaseException:
            file.close()
            raise
        file.finish(entry["bits"])

    def _pull(
        self, file: ArrivingFile, path: str, at: int, size: int, sign: list[int], done: int
    ) -> None:
        """Fetch a file's bytes from `at` to its end, asking for pieces ahead of those that
        arrive."""
        asked, under_way = at, 0
        while at < size:
            while asked < size and under_way < WINDOW_BYTES:
                count = min(PIECE_BYTES, size - asked)
                self.channel.send({"do": "read", "path": path, "at": asked, "size": count})
                asked, under_way = asked + count, under_way + count
            words, data = self.channel.read_answer()
            if (words["size"], words["sign"]) != (size, sign) or not data:
                self.close()  # answers that are under way are of the file as it was
                file.drop()
                raise _Changed
            file.write(at, data)
            at, under_way = at + len(data), under_way - len(data)
            self.progress.done = done + at
            self._tell(self.progress)

    # ---- to the task

    def send(self, paths: Sequence[str], to: str) -> CopyProgress:
        """Copy files and folders of this machine to the task. Raises HoldfastError, OSError."""
        into = to.endswith("/") or len(paths) > 1
        if not into:
            found: list[bool] = []
            self._keep_trying(lambda: found.append(self._is_folder(to or ".")))
            into = found[-1]
        jobs: list[tuple[str, str, os.stat_result]] = []
        for path in paths:
            name = os.path.basename(os.path.abspath(path))
            target = f"{to.rstrip('/')}/{name}" if into and to.strip("/") else to
            if into and not to.strip("/"):
                target = f"/{name}" if to else name
            jobs += self._list_here(path, target)
        self.progress.whole = sum(s.st_size for _, _, s in jobs if stat.S_ISREG(s.st_mode))
        for path, target, status in jobs:
            self.progress.path = path
            try:
                if stat.S_ISDIR(status.st_mode):
                    self._make_folder(target, stat.S_IMODE(status.st_mode) & 0o777)
                else:
                    self._send_file(path, target)
            except FilesRefused as error:
                raise FilesRefused(
                    f"{path} cannot be written in the task, to {target}: {error}; what has arrived "
                    "stays there, so the same copy goes on"
                ) from error
        self.close()
        return self.progress

    def _make_folder(self, target: str, bits: int) -> None:
        self._keep_trying(
            lambda: void(self.channel.ask({"do": "folder", "path": target, "bits": bits}))
        )

    def _is_folder(self, path: str) -> bool:
        try:
            return bool(self.channel.ask({"do": "stat", "path": path})[0].get("kind") == "folder")
        except FilesRefused:
            return False

    def _list_here(self, path: str, target: str) -> Iterator[tuple[str, str, os.stat_result]]:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            yield path, target, status
            return
        yield path, target, status
        for where, folders, names in os.walk(path, onerror=_raise):
            below = os.path.relpath(where, path)
            for name in sorted(folders) + sorted(names):
                one = os.path.join(where, name)
                status = os.lstat(one)
                there = os.path.normpath(f"{target}/{below}/{name}")
                if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
                    yield one, there, status
                else:
                    self.progress.left.append((one, "a link, device, socket or fifo"))

    def _send_file(self, path: str, target: str) -> None:
        done = self.progress.done
        for _ in range(_TRIES):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                status = os.fstat(fd)
                self._keep_trying(partial(self._send_bytes, fd, status, target, done))
            except _Changed:
                self.progress.done = done
                continue
            finally:
                os.close(fd)
            self.progress.files += 1
            return
        self.progress.left.append((path, "it changed each time that it was read"))

    def _send_bytes(self, fd: int, status: os.stat_result, target: str, done: int) -> None:
        size, sign = status.st_size, (status.st_ino, status.st_mtime_ns)
        mark = hashlib.sha256(repr((size, sign)).encode()).hexdigest()[:16]
        part = os.path.join(
            os.path.dirname(target), f".{os.path.basename(target)[:200]}.{mark}.part"
        )
        try:
            at = min(size, int(self.channel.ask({"do": "stat", "path": part})[0].get("size", 0)))
        except FilesRefused:
            at = 0
            self.channel.ask({"do": "write", "path": part, "at": 0})
        self.progress.done = done + at
        under_way: deque[int] = deque()
        while at < size or under_way:
            while at < size and sum(under_way) < WINDOW_BYTES:
                data = os.pread(fd, min(PIECE_BYTES, size - at), at)
                if not data:
                    self.close()
                    raise _Changed
                self.channel.send({"do": "write", "path": part, "at": at}, data)
                at += len(data)
                under_way.append(len(data))
            self.channel.read_answer()
            self.progress.done += under_way.popleft()
            self._tell(self.progress)
        words = {"do": "commit", "part": part, "path": target, "size": size}
        bits = stat.S_IMODE(status.st_mode) & 0o777
        sha256 = _hash(fd, size)
        now = os.fstat(fd)
        if (now.st_size, (now.st_ino, now.st_mtime_ns)) != (size, sign):
            raise _Changed
        self.channel.ask({**words, "sha256": sha256, "bits": bits})


def _raise(error: OSError) -> None:
    """Raise the error of a folder that cannot be read, because a walk would leave the folder out
    without a word."""
    raise error


def void(value: object) -> None:
    """Ignore a value. This stands for a callback that was not given."""


def _hash(fd: int, size: int) -> str:
    digest, at = hashlib.sha256(), 0
    while at < size and (piece := os.pread(fd, min(1 << 20, size - at), at)):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()


def _strip(path: str, base: str) -> bytes:
    """Return a name that arrived without the folder in front of it. Raises ValidationError for a
    name that is not below that folder."""
    name, base = path.removeprefix("./"), base.removeprefix("./").rstrip("/")
    if base not in ("", "."):
        if name == base:
            return b""
        if not name.startswith(f"{base}/"):
            raise ValidationError(f"{path!r} is no name below a folder {base!r}; it is not written")
        name = name.removeprefix(f"{base}/")
    return b"" if name == "." else os.fsencode(name)


def _write_pattern(glob: str) -> str:
    """Return a regular expression for a pattern in which `*` and `?` stand for letters other than a
    slash, and `**` for any letters."""
    found = ""
    at = 0
    while at < len(glob):
        if glob.startswith("**", at):
            found, at = found + ".*", at + 2
        elif glob[at] in "*?":
            found, at = found + ("[^/]*" if glob[at] == "*" else "[^/]"), at + 1
        elif glob[at] == "[" and (end := glob.find("]", at + 2)) > 0:
            inside = glob[at + 1 : end].replace("\\", "\\\\")
            found += f"[{'^' + inside[1:] if inside[0] in '!^' else inside}]"
            at = end + 1
        else:
            found, at = found + re.escape(glob[at]), at + 1
    return found
