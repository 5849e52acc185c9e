"""Serve the files of one folder over standard input and output, to Holdfast itself: for the outputs
of a task, and for `holdfast cp`. Standard library only, and one process for each use.

    python -I -m holdfast.work.files below ROOT [PROCS]    names stand below ROOT, and none leads
                                                   out; PROCS is the `cgroup.procs` to join first
    python -I -m holdfast.work.files task PID      names are those that process PID sees, 0: this one;
                                                   one without a / in front is in its folder

A request and an answer are each a head of two lengths (4 bytes each), a JSON object, and bytes.
`{"do": "walk", "paths": […], "most": N}` answers with entries, 500 at a time, and then with what
was left out. `read`, `stat`, `write`, `commit` and `folder` answer once each.

BELOW-1  With `below` the kernel resolves every name (openat2, RESOLVE_BENEATH): no `..`, no
         absolute name and no link leads out of ROOT, also while another process changes the
         folders. Links are listed, with what they lead to, and never followed; those that lead out
         are left out.
BELOW-2  Only files, folders and links are listed. A device, socket or fifo is left out and never
         opened. Of a file's bits only those of reading, writing and executing are told or set.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

HEAD = struct.Struct(">II")
MAX_BYTES = 16 << 20
MAX_HEAD_BYTES = 16 << 20
BATCH = 500
MAX_LEFT = 1000
_OPENAT2 = 437  # on every architecture
_NO_MAGIC, _BENEATH, _IN_ROOT = 0x02, 0x08, 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class NotServed(Exception):
    """Says why a request cannot be carried out."""


class FileTree:
    """The files below one folder. beneath: no name leads out of the folder (BELOW-1); without it,
    links are followed as by a process whose root this folder is, and `cwd` is the folder of names
    without a / in front."""

    def __init__(self, root: str, *, beneath: bool = True, cwd: str = "") -> None:
        self._cwd = os.fsencode(cwd)
        self.root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._resolve = _NO_MAGIC | (_BENEATH if beneath else _IN_ROOT)

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        """Open the file of a name. Raises OSError."""
        name = os.fsencode(path) or b"."
        if not self._resolve & _BENEATH:
            name = os.path.join(self._cwd, name)
        how = struct.pack("QQQ", flags | os.O_CLOEXEC, mode, self._resolve)
        for _ in range(16):  # a name that another process changes meanwhile is asked for again
            fd = int(_libc.syscall(_OPENAT2, self.root, name, how, len(how)))
            number = ctypes.get_errno()
            if fd >= 0 or number != errno.EAGAIN:
                break
        if fd >= 0:
            return fd
        if number == errno.ENOSYS:
            return self._open_by_steps(name, flags, mode)
        raise OSError(number, os.strerror(number), path)

    def _open_by_steps(self, name: bytes, flags: int, mode: int) -> int:
        """Open a name on a kernel without openat2 (before 5.6): step by step, and through no link
        at all."""
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        if b".." in parts or (name.startswith(b"/") and self._resolve & _BENEATH):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(name))
        at = os.dup(self.root)
        try:
            for part in parts[:-1]:
                below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
                os.close(at)
                at = below
            return os.open(parts[-1] if parts else b".", flags | os.O_NOFOLLOW, mode, dir_fd=at)
        finally:
            os.close(at)

    # ---- what is there

    def walk(self, paths: list[str], most: int) -> Iterator[dict[str, Any]]:
        """Yield an entry for everything below these names, and {"left": reason} for each name that
        is left out."""
        seen = 0
        pending = [path.rstrip("/") or "." for path in reversed(paths)]
        tops = set(pending)
        while pending:
            path = pending.pop()
            try:
                entry = self.look(path, follow=path in tops)
            except OSError as error:
                yield {"path": path, "left": _say(error)}
                continue
            if "left" in entry:
                yield entry
                continue
            seen += 1
            if seen > most:
                yield {"path": path, "left": f"more than {most} files and folders"}
                return
            yield entry
            if entry["kind"] == "folder":
                try:
                    names = self._list(path)
                except OSError as error:
                    yield {"path": path, "left": _say(error)}
                    continue
                pending += [name if path == "." else f"{path}/{name}" for name in reversed(names)]

    def _list(self, path: str) -> list[str]:
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return sorted(os.listdir(fd))
        finally:
            os.close(fd)

    def look(self, path: str, *, follow: bool) -> dict[str, Any]:
        """Return the entry of a name: its kind, its size and the like (BELOW-2). Raises OSError."""
        fd = self.open(path, os.O_PATH | (0 if follow else os.O_NOFOLLOW))
        try:
            found = os.fstat(fd)
            kind = stat.S_IFMT(found.st_mode)
            entry = {"path": path, "bits": stat.S_IMODE(found.st_mode) & 0o777}
            if kind == stat.S_IFREG:
                sign = [found.st_ino, found.st_mtime_ns, found.st_ctime_ns]
                return {**entry, "kind": "file", "size": found.st_size, "sign": sign}
            if kind == stat.S_IFDIR:
                return {**entry, "kind": "folder"}
            if kind == stat.S_IFLNK:
                return {**entry, "kind": "link", **self._look_link(path, fd)}
            return {"path": path, "left": "a device, socket or fifo"}
        finally:
            os.close(fd)

    def _look_link(self, path: str, fd: int) -> dict[str, Any]:
        target = os.readlink(b"", dir_fd=fd)
        if not self._resolve & _BENEATH:
            return {"target": os.fsdecode(target)}
        inside = not target.startswith(b"/") and keeps_inside(path, os.fsdecode(target))
        if inside:
            try:
                os.close(self.open(path, os.O_PATH))
            except OSError as error:
                inside = error.errno == errno.ENOENT
        if not inside:
            return {"left": f"a link that leads out, to {os.fsdecode(target)}"}
        return {"target": os.fsdecode(target)}

    # ---- reading

    def read(self, path: str, at: int, size: int) -> tuple[dict[str, Any], bytes]:
        """Return a piece of a file, and the file's size and sign after the read: the sign is three
        numbers, of which one changes when the file does. Raises OSError."""
        fd = self.open(path, _READ | (os.O_NOFOLLOW if self._resolve & _BENEATH else 0))
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise NotServed("it is no file")
            pieces, left = [], min(size, MAX_BYTES)
            while left and (piece := os.pread(fd, left, at)):
                pieces.append(piece)
                at, left = at + len(piece), left - len(piece)
            found = os.fstat(fd)
        finally:
            os.close(fd)
        sign = [found.st_ino, found.st_mtime_ns, found.st_ctime_ns]
        return {"size": found.st_size, "sign": sign}, b"".join(pieces)

    def digest(self, path: str, size: int) -> str:
        """Return the SHA-256 of the first `size` bytes of a file. Raises OSError."""
        digest, at = hashlib.sha256(), 0
        while at < size:
            _, piece = self.read(path, at, min(1 << 20, size - at))
            if not piece:
                break
            digest.update(piece)
            at += len(piece)
        return digest.hexdigest()

    # ---- writing

    def write(self, path: str, at: int, data: bytes) -> None:
        """Write a piece of a file that is being sent. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
        fd = self.open(path, flags, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise NotServed("it is no file")
            while data:
                written = os.pwrite(fd, data, at)
                data, at = data[written:], at + written
        finally:
            os.close(fd)

    def commit(self, part: str, path: str, size: int, sha256: str, bits: int) -> None:
        """Give a file that was sent its name and its permission bits, if its bytes have this size
        and SHA-256. Raises OSError, NotServed."""
        fd = self.open(part, os.O_RDWR | os.O_NOFOLLOW)
        try:
            os.ftruncate(fd, size)
            if self.digest(part, size) != sha256:
                raise NotServed("other bytes arrived than were sent: send it again")
            os.fchmod(fd, bits & 0o777)
            os.fsync(fd)
        finally:
            os.close(fd)
        parent = self.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
        try:
            name = os.path.basename(path)
            os.rename(os.path.basename(part), name, src_dir_fd=parent, dst_dir_fd=parent)
        finally:
            os.close(parent)

    def make_folder(self, path: str, bits: int) -> None:
        """Make a folder and the folders above it; a folder that is there already stays as it is.
        Raises OSError."""
        done = "/" if path.startswith("/") else ""
        for name in [part for part in path.split("/") if part not in ("", ".")]:
            parent = self.open(done, os.O_PATH | os.O_DIRECTORY)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, bits & 0o777 | 0o700, dir_fd=parent)
            finally:
                os.close(parent)
            done = f"{done.rstrip('/')}/{name}" if done else name
        os.close(self.open(path, os.O_PATH | os.O_DIRECTORY))


def keeps_inside(path: str, target: str) -> bool:
    """Return whether a link at `path` stays below the root, also if the names beside it are links: its
    target climbs only at its beginning, and no further than the root."""
    parts = [part for part in target.split("/") if part not in ("", ".")]
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    depth = len([part for part in path.split("/") if part not in ("", ".")]) - 1
    return not target.startswith("/") and climbs <= depth and ".." not in parts[climbs:]


def _say(error: OSError) -> str:
    if error.errno == errno.EXDEV:
        return "it leads out of the folder"
    return os.strerror(error.errno) if error.errno else str(error)


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Return the next frame of a stream, None at the stream's end. Raises EOFError where only a
    part of a frame comes."""
    head = _read_exactly(stream, HEAD.size, first=True)
    if not head:
        return None
    sizes = HEAD.unpack(head)
    if sizes[0] > MAX_HEAD_BYTES or sizes[1] > MAX_BYTES:
        raise EOFError("this is no frame")
    words = json.loads(_read_exactly(stream, sizes[0]))
    return words, _read_exactly(stream, sizes[1])


def _read_exactly(stream: BinaryIO, size: int, *, first: bool = False) -> bytes:
    data = stream.read(size) if size else b""
    if len(data) < size and not (first and not data):
        raise EOFError("the other side has gone")
    return data


def make_frame(words: dict[str, Any], data: bytes = b"") -> bytes:
    """Return a frame."""
    head = json.dumps(words, separators=(",", ":")).encode()
    return HEAD.pack(len(head), len(data)) + head + data


def serve(tree: FileTree, source: BinaryIO, sink: BinaryIO) -> None:
    """Answer requests until there are no more."""
    while (frame := read_frame(source)) is not None:
        words, data = frame
        for answer, more in _answer(tree, words, data):
            sink.write(make_frame(answer, more))
        sink.flush()


def _answer(
    tree: FileTree, words: dict[str, Any], data: bytes
) -> Iterator[tuple[dict[str, Any], bytes]]:
    try:
        if words["do"] == "walk":
            yield from _walk(tree, words)
            return
        yield _ANSWERS[words["do"]](tree, words, data)
    except NotServed as error:
        yield {"error": str(error)}, b""
    except OSError as error:
        yield {"error": _say(error), "errno": error.errno or 0}, b""


def _walk(tree: FileTree, words: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bytes]]:
    found: list[dict[str, Any]] = []
    left: list[dict[str, Any]] = []
    more = 0
    for entry in tree.walk(words["paths"], words["most"]):
        if "left" not in entry:
            found.append(entry)
        elif len(left) < MAX_LEFT:
            left.append(entry)
        else:
            more += 1
        if len(found) >= BATCH:
            yield {"entries": found, "more": True}, b""
            found = []
    yield {"entries": found, "left": left, "left_more": more}, b""


def _put(tree: FileTree, words: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    tree.write(words["path"], words["at"], data)
    return {}, b""


def _commit(tree: FileTree, words: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    tree.commit(words["part"], words["path"], words["size"], words["sha256"], words["bits"])
    return {}, b""


def _make_folder(
    tree: FileTree, words: dict[str, Any], data: bytes
) -> tuple[dict[str, Any], bytes]:
    tree.make_folder(words["path"], words["bits"])
    return {}, b""


def _digest(tree: FileTree, words: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
    return {"sha256": tree.digest(words["path"], words["size"])}, b""


_Answer = Callable[[FileTree, dict[str, Any], bytes], tuple[dict[str, Any], bytes]]
_ANSWERS: dict[str, _Answer] = {
    "stat": lambda tree, words, data: (tree.look(words["path"], follow=True), b""),
    "read": lambda tree, words, data: tree.read(words["path"], words["at"], words["size"]),
    "digest": _digest,
    "write": _put,
    "commit": _commit,
    "folder": _make_folder,
}


def _join(procs: str) -> None:
    """Join a control group, and be killed before a task where the host's memory is short. A group
    that is gone is none to be bounded by."""
    with contextlib.suppress(OSError), open(procs, "w") as file:
        file.write("0")
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        file.write(str(min(1000, max(0, int(file.read())) + 500)))


def main() -> int:
    """Serve the folder that the command line names."""
    if sys.argv[1] == "below":
        if len(sys.argv) > 3:
            _join(sys.argv[3])
        tree = FileTree(sys.argv[2])
    elif sys.argv[2] == "0":
        tree = FileTree("/", beneath=False, cwd=os.getcwd())
    else:
        place = f"/proc/{int(sys.argv[2])}"
        tree = FileTree(f"{place}/root", beneath=False, cwd=os.readlink(f"{place}/cwd"))
    with contextlib.suppress(BrokenPipeError, EOFError):
        serve(tree, sys.stdin.buffer, sys.stdout.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
