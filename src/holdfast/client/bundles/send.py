"""Send a folder: read what changed, send the bytes that are missing, then the manifest.

SEND-1  The bytes that are sent are those that were hashed. A file that changes while it is read is
        read again, a few times, and then named; no bundle is made of half of a change.
SEND-2  Bytes are asked for before they are sent, and a batch is sent while the next is read. A
        sending that broke off goes on with what is missing.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from holdfast.client.bundles.care import TELL_BYTES, say_large
from holdfast.client.bundles.index import Index, find_place, load_index, save_index, sign
from holdfast.client.bundles.walk import Walk, list_largest
from holdfast.client.late import on_bundles
from holdfast.client.rest import RestCall, ask, query_of, read_as, read_nothing
from holdfast.client.scripts import Caller
from holdfast.core.bundles.code import CodeRef
from holdfast.core.bundles.manifest import (
    FILE,
    FOLDER,
    LINK,
    PIECE_BYTES,
    WHOLE_BYTES,
    Entry,
    compress_manifest,
    list_digests,
    name_manifest,
    show_path,
)
from holdfast.core.bundles.packs import PACK_BYTES, head_of_pack
from holdfast.errors import Conflict, HoldfastError, NotFound, ValidationError
from holdfast.wire.data.bundles import BundleView, MissingRequest

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


AT_ONCE = 4
MAX_PARTS = 2048
ASK_AT_ONCE = 10_000
_TRIES = 5
_WAIT_SECONDS = 0.2


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of sending a folder. code: the reference that a job names. files, size: of the
    whole folder, in bytes. read: bytes that were read. sent: bytes that went over the wire.
    changed: files that changed while they were read."""

    code: CodeRef
    files: int
    size: int
    read: int
    sent: int
    changed: list[bytes]


class SendProgress(msgspec.Struct):
    """The progress of sending a folder, counted in the bytes that have to be read."""

    whole: int = 0
    read: int = 0
    sent: int = 0


Tell = Callable[[SendProgress], None]
_Part = tuple[bytes, bytes]  # a SHA-256 and its bytes


class FolderSender:
    """Sends one folder to one project. address: the name of the server in the index. tell: called
    now and then with the progress; note: called with a sentence about a file that changes,
    and before many bytes are sent."""

    def __init__(
        self,
        caller: Caller,
        walk: Walk,
        project: str,
        address: str,
        *,
        tell: Tell = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._caller, self._walk, self._project = caller, walk, project
        self._tell, self._note = tell, note
        self._place = find_place(walk.root)
        self._index = load_index(self._place)
        self._where = f"{address} {project}"
        self._pool: ThreadPoolExecutor | None = None
        self._flying: set[Future[int]] = set()
        self._asked: set[bytes] = set()
        self._changed: dict[bytes, None] = {}
        self._progress = SendProgress()

    def send(self) -> Sent:
        """Send the bytes that are missing, and return the reference that a job names. Raises
        HoldfastError."""
        try:
            return self._send()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)

    def _send(self) -> Sent:
        refuse_unreadable(self._walk)
        for hint in self._walk.hints:
            self._note(hint)
        began = time.time_ns()
        known = self._find_known()
        unread = [f for f in self._walk.found if _is_file(f.status) and f.path not in known]
        self._add_up([(f.path, f.status.st_size) for f in unread])
        for path, digests, status in self._read_all((f.path, f.status) for f in unread):
            known[path] = digests, status
        self._land(0)
        entries = self._make_entries(known)
        digest, raw = name_manifest(entries)
        fresh = bool(unread) or self._index.kept.get(self._where) != digest
        if fresh or not self._is_kept(digest):
            digest = self._make_bundle(digest, raw, known)
        if fresh:
            self._save(known, digest, began)
        checkout = self._walk.checkout or CodeRef()
        code = msgspec.structs.replace(checkout, digest=digest)
        progress = self._progress
        return Sent(
            code=code,
            files=self._walk.files,
            size=self._walk.size,
            read=progress.read,
            sent=progress.sent,
            changed=list(self._changed),
        )

    def _add_up(self, files: list[tuple[bytes, int]]) -> None:
        """Count files that are to be read, and name the largest folders where these are many bytes."""
        size = sum(each for _, each in files)
        self._progress.whole += size
        if size >= TELL_BYTES:
            self._note(say_large(size, list_largest(files)))

    def _find_known(self) -> dict[bytes, tuple[bytes, os.stat_result]]:
        known: dict[bytes, tuple[bytes, os.stat_result]] = {}
        for found in self._walk.found:
            if _is_file(found.status):
                digests = self._index.find(found.path, found.status)
                if digests is not None:
                    known[found.path] = digests, found.status
        return known

    def _save(
        self, known: dict[bytes, tuple[bytes, os.stat_result]], digest: str, began: int
    ) -> None:
        files = {path: (sign(status), digests) for path, (digests, status) in known.items()}
        kept = {**self._index.kept, self._where: digest}
        save_index(self._place, Index(written_ns=began, files=files, kept=kept))

    # ---- the manifest

    def _make_entries(self, known: dict[bytes, tuple[bytes, os.stat_result]]) -> list[Entry]:
        entries = []
        for found in self._walk.found:
            path, status = found.path, found.status
            bits = stat.S_IMODE(status.st_mode) & 0o777
            if stat.S_ISDIR(status.st_mode):
                entries.append(Entry(path, FOLDER, bits))
            elif stat.S_ISLNK(status.st_mode):
                target = os.readlink(os.path.join(self._walk.root, path))
                entries.append(Entry(path, LINK, target=target))
            elif path in known:
                digests, status = known[path]
                bits = stat.S_IMODE(status.st_mode) & 0o777
                entries.append(Entry(path, FILE, bits, status.st_size, digests))
        return entries

    def _is_kept(self, digest: str) -> bool:
        try:
            self._caller.call(ask(on_bundles.GET_BUNDLE, digest, project=self._project))
        except NotFound:
            return False
        return True

    def _make_bundle(
        self, digest: str, raw: bytes, known: dict[bytes, tuple[bytes, os.stat_result]]
    ) -> str:
        """Have the server make the bundle; send the bytes that the project has lost meanwhile, or
        never had. Return the bundle's digest."""
        sure = self._where in self._index.kept or not self._index.files
        for _ in range(_TRIES):
            if not sure:
                self._send_missing(self._make_entries(known), known)
                digest, raw = name_manifest(self._make_entries(known))
            try:
                self._post(compress_manifest(raw))
            except Conflict as error:
                if error.code != "bundle_incomplete":
                    raise
                sure = False
                continue
            return digest
        raise ValidationError(
            "the folder changes all the time, so that no bundle can be made of it"
        )

    def _post(self, manifest: bytes) -> None:
        query = query_of(project=self._project)
        call = RestCall("POST", "/v1/bundles", read_as(BundleView), query, manifest)
        self._caller.call(call)
        self._progress.sent += len(manifest)

    def _send_missing(
        self, entries: list[Entry], known: dict[bytes, tuple[bytes, os.stat_result]]
    ) -> None:
        """Ask which digests are missing, and read and send the files with these digests again."""
        wanted = [digest for digest in list_digests(entries) if digest not in self._asked]
        missing = set[bytes]()
        for start in range(0, len(wanted), ASK_AT_ONCE):
            missing |= self._ask(wanted[start : start + ASK_AT_ONCE])
        self._asked.clear()
        again = [e for e in entries if e.kind == FILE and _has_any(e, missing)]
        self._add_up([(entry.path, entry.size) for entry in again])
        root = self._walk.root
        paths = ((e.path, os.lstat(os.path.join(root, e.path))) for e in again)
        for path, digests, status in self._read_all(paths):
            known[path] = digests, status
        self._land(0)

    # ---- reading and sending

    def _read_all(
        self, files: Iterable[tuple[bytes, os.stat_result]]
    ) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
        """Read files, have their missing pieces sent, and yield each file with its digests."""
        batch, size = list[bytes](), 0
        names = list[tuple[bytes, list[int], os.stat_result]]()
        for path, before in files:
            if before.st_size > WHOLE_BYTES:
                yield (path, *self._read_large(path, before))
                continue
            data, status = self._read_file(path, before)
            names.append((path, [len(batch)] if data else [], status))
            if data:
                batch.append(data)
                size += len(data)
            if size >= PACK_BYTES or len(names) >= MAX_PARTS:
                yield from self._take(names, batch)
                names, batch, size = [], [], 0
        yield from self._take(names, batch)

    def _take(
        self, names: list[tuple[bytes, list[int], os.stat_result]], batch: list[bytes]
    ) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
        parts = [(hashlib.sha256(data).digest(), data) for data in batch]
        self._fly(parts)
        for path, places, status in names:
            yield path, b"".join(parts[n][0] for n in places), status

    def _read_file(self, path: bytes, before: os.stat_result) -> tuple[bytes, os.stat_result]:
        """Return the bytes and the status of a file; the status is the same before and after the
        read (SEND-1)."""
        for number in range(_TRIES):
            fd = self._open(path)
            try:
                before = os.fstat(fd)
                data = _read_whole(fd, before.st_size)
                after = os.fstat(fd)
            finally:
                os.close(fd)
            if sign(before) == sign(after) and len(data) == after.st_size:
                self._progress.read += len(data)
                self._tell(self._progress)
                return data, after
            self._note_change(path, number)
        raise _never_still(path)

    def _read_large(self, path: bytes, before: os.stat_result) -> tuple[bytes, os.stat_result]:
        for number in range(_TRIES):
            fd, digests = self._open(path), list[bytes]()
            try:
                before = os.fstat(fd)
                for at in range(0, before.st_size, PIECE_BYTES):
                    data = os.pread(fd, min(PIECE_BYTES, before.st_size - at), at)
                    digests.append(hashlib.sha256(data).digest())
                    self._progress.read += len(data)
                    self._fly([(digests[-1], data)])
                    self._tell(self._progress)
                after = os.fstat(fd)
            finally:
                os.close(fd)
            if sign(before) == sign(after):
                return b"".join(digests), after
            self._note_change(path, number)
        raise _never_still(path)

    def _open(self, path: bytes) -> int:
        try:
            whole = os.path.join(self._walk.root, path)
            return os.open(whole, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise ValidationError(
                f"{show_path(path)} cannot be read: {error.strerror}; leave it out in "
                ".holdfastignore, or change its permissions",
                field="workdir",
            ) from None

    def _note_change(self, path: bytes, number: int) -> None:
        self._changed[path] = None
        self._note(f"{show_path(path)} changed while it was read; it is read again")
        time.sleep(_WAIT_SECONDS * (number + 1))

    def _fly(self, parts: list[_Part]) -> None:
        """Send pieces in the background, at most `AT_ONCE` batches of them at a time."""
        fresh = dict[bytes, bytes]()
        for digest, data in parts:
            if digest not in self._asked:
                self._asked.add(digest)
                fresh[digest] = data
        if fresh:
            self._land(AT_ONCE - 1)
            self._pool = self._pool or make_pool()
            self._flying.add(self._pool.submit(self._send_batch, list(fresh.items())))

    def _land(self, most: int) -> None:
        """Wait until at most `most` batches are under way. Raises the error of a batch that
        failed."""
        while len(self._flying) > most:
            from concurrent.futures import FIRST_COMPLETED, wait

            done, self._flying = wait(self._flying, return_when=FIRST_COMPLETED)
            for one in done:
                self._progress.sent += one.result()
            self._tell(self._progress)

    def _send_batch(self, parts: list[_Part]) -> int:
        missing = self._ask([digest for digest, _ in parts])
        left = [part for part in parts if part[0] in missing]
        if not left:
            return 0
        head = head_of_pack([(digest, len(data)) for digest, data in left])
        body = b"".join((head, *(data for _, data in left)))
        query = query_of(project=self._project)
        self._caller.call(RestCall("PUT", "/v1/bundles/packs", read_nothing, query, body))
        return len(body)

    def _ask(self, digests: list[bytes]) -> set[bytes]:
        names = [digest.hex() for digest in digests]
        request = MissingRequest(project=self._project, digests=names)
        call = ask(on_bundles.FIND_MISSING, body=request)
        return {bytes.fromhex(name) for name in self._caller.call(call).missing}


def refuse_unreadable(walk: Walk) -> None:
    """Raise ValidationError where a path of a folder cannot be read, because the job would begin
    without it in silence."""
    if walk.unreadable:
        first = walk.unreadable[0]
        more = f", and {len(walk.unreadable) - 1} others" if len(walk.unreadable) > 1 else ""
        raise ValidationError(
            f"{show_path(first.path)} cannot be read: {first.why}{more}; nothing was sent. Leave it "
            "out in .holdfastignore, or change its permissions",
            field="workdir",
        )


def make_pool() -> ThreadPoolExecutor:
    """Return the threads that send. They are imported late, because most folders have nothing new
    to send."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(AT_ONCE, "code")


def _read_whole(fd: int, size: int) -> bytes:
    data = os.read(fd, size + 1)
    while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
        data += more
    return data


def _has_any(entry: Entry, digests: set[bytes]) -> bool:
    return any(digest in digests for digest, _, _ in entry.list_pieces())


def _is_file(status: os.stat_result) -> bool:
    return stat.S_ISREG(status.st_mode)


def _never_still(path: bytes) -> HoldfastError:
    return ValidationError(
        f"{show_path(path)} changed each of the {_TRIES} times that it was read; leave it out in "
        ".holdfastignore, or wait until what writes it is done",
        field="workdir",
    )
