"""Transfer checkpoints: large bodies, on connections of their own, in threads that block
(`offload.run_aside`).

A transfer may take minutes and must never delay a heartbeat, so it shares neither connections nor
the loop with the agent's calls.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.agent.uplink.calls import decode_body, read_problem
from holdfast.core.ids import TaskKey
from holdfast.core.spec import MAX_STDIN_BYTES
from holdfast.errors import ConnectionLost, TooLarge, Unavailable, ValidationError
from holdfast.http.blocking import BlockingHttp
from holdfast.http.courier import HttpAnswer, HttpRequest
from holdfast.http.streams import ByteStream
from holdfast.process.files import write_all
from holdfast.wire.agent import (
    CheckpointOffer,
    CheckpointSkip,
    decode_checkpoint_offer,
    decode_checkpoint_stored,
)
from holdfast.work.save_note import MAX_BYTES, PREFIX

SILENCE_SECONDS = 30.0  # longest wait for the connection, for one piece, and for the answer
PIECE_BYTES = 1 << 20
_MAX_PROBLEM_BYTES = 64 * 1024
_PATH = "/v1/agent/checkpoint"
_MAX_NOTES = 8
_FAILED_SAVE = "a function of on_drain failed, so its last checkpoint may be missing"
_UNENDED_SAVE = (
    "its function of on_drain had not returned when it ended, so its last checkpoint may be missing"
)
_NAME = re.compile(r"checkpoint(?:\.(\d{1,15}))?")


class SavedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint in a task's folder.

    fd: an open descriptor of the file, which keeps the bytes when the file is replaced. size: its
    bytes. changed_ns: its ctime in nanoseconds. step: the training step that its name gives; None
    if it gives none.
    """

    path: Path
    fd: int
    size: int
    changed_ns: int
    step: int | None

    @property
    def identity(self) -> tuple[Path, int, int]:
        """Return a value that stays the same as long as the bytes do, because a write to the
        file changes its ctime."""
        return self.path, self.changed_ns, self.size

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


def find_saved(folder: Path) -> list[tuple[int, int, Path]]:
    """Return the finished checkpoints, oldest first, as (ctime in nanoseconds, step or -1,
    path)."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _NAME.fullmatch(entry.name)
                if match is not None and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)  # a rename changes the ctime, too
                    found.append((status.st_ctime_ns, int(match[1] or -1), Path(entry.path)))
    except OSError:
        return []
    return sorted(found)


def find_failed_saves(folder: Path) -> list[str]:
    """Return a sentence for each save of a stop that failed or came to no end (`work.save_note`)."""
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_file(follow_symlinks=False):
                fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
                with open(fd, "rb") as file:
                    said = file.read(MAX_BYTES).decode("utf-8", "replace")
                found.append(f"{_FAILED_SAVE}: {said}" if said else _UNENDED_SAVE)
    return sorted(found[:_MAX_NOTES])


def open_newest(folder: Path) -> SavedCheckpoint | None:
    """Open the newest checkpoint of a folder; return None if there is none."""
    while found := find_saved(folder):
        changed_ns, step, path = found[-1]
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            continue  # replaced by a newer one
        return SavedCheckpoint(
            path, fd, os.fstat(fd).st_size, changed_ns, step if step >= 0 else None
        )
    return None


def remove_up_to(folder: Path, saved: SavedCheckpoint) -> None:
    """Delete a checkpoint and the older checkpoints in its folder. A newer file stays, also if it
    has the same name."""
    for changed_ns, _, path in find_saved(folder):
        if changed_ns <= saved.changed_ns:
            with contextlib.suppress(OSError):
                path.unlink()


class Wire:
    """Holds the connection of one transfer, which another thread may break off."""

    def __init__(self) -> None:
        self._stream: ByteStream | None = None
        self._stopped = False

    def use(self, stream: ByteStream) -> None:
        """Remember the connection of the call that begins, so that `stop` can break the call
        off."""
        self._stream = stream
        self.check()

    def check(self) -> None:
        """Raise Unavailable if the transfer was broken off."""
        if self._stopped:
            raise Unavailable("the transfer was broken off")

    def stop(self) -> None:
        """Break the transfer off, so that calls that block in the connection return."""
        self._stopped = True
        if self._stream is not None:
            self._stream.stop()


class Transfers:
    """Makes the transfers of one host. All methods block, and raise the controller's error or
    Unavailable."""

    def __init__(self, http: BlockingHttp, *, incarnation: str, token: Callable[[], str]) -> None:
        self._http = http
        self._incarnation = incarnation
        self._token = token

    def upload(self, key: TaskKey, saved: SavedCheckpoint, sha256: str, wire: Wire) -> int:
        """Send a checkpoint with this checksum; return its number on record.

        Raises:
            Stale, Conflict: its attempt is over. TooLarge: it is over the limit of its queue.
            ValidationError: the bytes changed while they were read.
        """
        query = {} if saved.step is None else {"step": saved.step}
        headers = {
            "Content-Length": str(saved.size),
            "Content-Type": "application/octet-stream",
            "Holdfast-Sha256": sha256,
        }
        request = self._request("PUT", _PATH, wire, self._words(key, query), headers)
        request = msgspec.structs.replace(request, body=_read_file(saved, wire), repeatable=False)
        with _explain("the upload broke off"):
            answer = self._http.call(request, _MAX_PROBLEM_BYTES)
        if answer.status // 100 != 2:
            raise read_problem(answer)
        return decode_body(decode_checkpoint_stored, answer.body).number

    def download(self, key: TaskKey, offer: CheckpointOffer, path: Path, wire: Wire) -> None:
        """Fetch a checkpoint into `path`, whole or not at all. Raises ValidationError if other
        bytes came than were offered, OSError if the disk cannot store them."""
        part = path.with_name(f".{path.name}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(part, flags, 0o600)
        try:
            try:
                size, sha256 = self._receive(key, offer, fd, wire)
            finally:
                os.close(fd)
            if (size, sha256) != (offer.size, offer.sha256):
                raise ValidationError(
                    f"{size} bytes came with SHA-256 {sha256}; on record are {offer.size} bytes "
                    f"with {offer.sha256}",
                    code="checksum_mismatch",
                )
            os.rename(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def fetch_bytes(self, where: str, key: TaskKey, wire: Wire, limit_bytes: int) -> bytes:
        """Fetch what the controller has for a task under a path of the agents' API. Raises TooLarge
        for more than `limit_bytes`."""
        pieces, size = list[bytes](), 0
        for piece in self._fetch(f"/v1/agent/{where}", wire, self._words(key, {})):
            size += len(piece)
            if size > limit_bytes:
                raise TooLarge(f"it has more than {limit_bytes} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    def send_bytes(
        self, method: str, where: str, key: TaskKey, wire: Wire, body: bytes, *, attempt: int
    ) -> bytes:
        """Send bytes for a task to a path of the agents' API; return the answer's body."""
        query = self._words(key, {"attempt": attempt})
        request = self._request(method, f"/v1/agent/{where}", wire, query, {})
        request = msgspec.structs.replace(request, body=body, repeatable=False)
        with _explain("the upload broke off"):
            answer = self._http.call(request)
        if answer.status // 100 != 2:
            raise read_problem(answer)
        return answer.body

    def fetch_value(self, sha256: str, path: Path, wire: Wire) -> None:
        """Fetch a value of at most `MAX_STDIN_BYTES` into `path`, whole or not at all. Raises
        ValidationError if the bytes do not have this SHA-256, OSError if the disk cannot store
        them."""
        part = path.with_name(f".{path.name}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd, digest, size = os.open(part, flags, 0o600), hashlib.sha256(), 0
        try:
            for piece in self._fetch(f"/v1/agent/values/{sha256}", wire):
                size += len(piece)
                if size > MAX_STDIN_BYTES:
                    raise TooLarge(f"it has more than {MAX_STDIN_BYTES} bytes")
                digest.update(piece)
                write_all(fd, piece)
            if digest.hexdigest() != sha256:
                raise ValidationError(f"other bytes came than those of {sha256}")
            os.rename(part, path)
        finally:
            os.close(fd)
            part.unlink(missing_ok=True)

    def skip(self, key: TaskKey, number: int, reason: str, wire: Wire) -> CheckpointOffer:
        """Report a checkpoint that cannot be used; return the next older one. Raises NotFound."""
        incarnation, why = self._incarnation, reason[:2048]
        skip = CheckpointSkip(key=key, incarnation=incarnation, number=number, reason=why)
        body = msgspec.json.encode(skip)
        kind = {"Content-Type": "application/json"}
        request = self._request("POST", f"{_PATH}/skip", wire, (), kind)
        with _explain("the controller cannot be asked for an older one"):
            answer = self._http.call(
                msgspec.structs.replace(request, body=body), _MAX_PROBLEM_BYTES
            )
        if answer.status != 200:
            raise read_problem(answer)
        return decode_body(decode_checkpoint_offer, answer.body)

    def _receive(
        self, key: TaskKey, offer: CheckpointOffer, fd: int, wire: Wire
    ) -> tuple[int, str]:
        size, digest = 0, hashlib.sha256()
        for piece in self._fetch(_PATH, wire, self._words(key, {"number": offer.number})):
            size += len(piece)
            digest.update(piece)
            write_all(fd, piece)
        return size, digest.hexdigest()

    def _fetch(
        self, path: str, wire: Wire, query: tuple[tuple[str, str], ...] = ()
    ) -> Iterator[bytes]:
        """Yield the bytes of an answer. Raises the controller's error, or Unavailable."""
        request = self._request("GET", path, wire, query, {})
        with _explain("the download broke off"), self._http.send(request) as answer:
            if answer.status != 200:
                body = answer.read(_MAX_PROBLEM_BYTES)
                raise read_problem(HttpAnswer(answer.status, body))
            for piece in answer.pieces():
                wire.check()
                yield piece

    def _request(
        self,
        method: str,
        path: str,
        wire: Wire,
        query: tuple[tuple[str, str], ...],
        headers: dict[str, str],
    ) -> HttpRequest:
        return HttpRequest(
            method,
            path,
            SILENCE_SECONDS,
            query,
            {**headers, "Authorization": f"Bearer {self._token()}"},
            repeatable=True,
            opened=wire.use,
        )

    def _words(self, key: TaskKey, more: dict[str, int]) -> tuple[tuple[str, str], ...]:
        """Return the query that names a task."""
        words = {"job": key.job_id, "rank": key.rank, "epoch": key.epoch}
        given = {**words, "incarnation": self._incarnation, **more}
        return tuple((name, str(value)) for name, value in given.items())


@contextlib.contextmanager
def _explain(trouble: str) -> Iterator[None]:
    """Raise Unavailable with `trouble` where a connection is lost."""
    try:
        yield
    except ConnectionLost as error:
        raise Unavailable(f"{trouble}: {error.message}") from error


def _read_file(saved: SavedCheckpoint, wire: Wire) -> Iterator[bytes]:
    at = 0
    while at < saved.size:
        piece = os.pread(saved.fd, min(PIECE_BYTES, saved.size - at), at)
        if not piece:
            shorter = "the file became shorter while it was read"
            raise ValidationError(shorter, code="checksum_mismatch")
        yield piece
        at += len(piece)
        wire.check()


def hash_file(fd: int, size: int) -> str:
    """Return the SHA-256 of the first `size` bytes of a file, without moving its offset. Raises
    OSError."""
    digest, at = hashlib.sha256(), 0
    while at < size and (piece := os.pread(fd, min(PIECE_BYTES, size - at), at)):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()
