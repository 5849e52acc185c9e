"""Transfer checkpoints: large bodies, on connections of their own, in threads that block
(`offload.run_aside`).

A transfer may take minutes and must never delay a heartbeat, so it shares neither connections nor
the loop with the agent's calls. The standard library's client is enough for it.
"""

import contextlib
import hashlib
import http.client
import os
import re
import select
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import msgspec

from holdfast.agent.uplink.calls import decode_body, read_problem
from holdfast.agent.uplink.http import HttpAnswer
from holdfast.core.ids import TaskKey
from holdfast.core.spec import MAX_STDIN_BYTES
from holdfast.errors import TooLarge, Unavailable, ValidationError
from holdfast.process.files import write_all
from holdfast.wire.agent import (
    CheckpointOffer,
    CheckpointSkip,
    decode_checkpoint_offer,
    decode_checkpoint_stored,
)

SILENCE_SECONDS = 30.0  # longest wait for the connection, for one piece, and for the answer
PIECE_BYTES = 1 << 20
_MAX_PROBLEM_BYTES = 64 * 1024
_CLOSED = (BrokenPipeError, ConnectionResetError, ssl.SSLEOFError)
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
    """Delete a checkpoint and the older ones. A newer one stays, also if it has the same name."""
    for changed_ns, _, path in find_saved(folder):
        if changed_ns <= saved.changed_ns:
            with contextlib.suppress(OSError):
                path.unlink()


class Wire:
    """Holds the connection of one transfer, which another thread may break off."""

    def __init__(self) -> None:
        self._connection: http.client.HTTPConnection | None = None
        self._stopped = False

    def use(self, connection: http.client.HTTPConnection) -> None:
        """Remember the connection of the call that begins, so that `stop` can break it off."""
        self._connection = connection
        self.check()

    def check(self) -> None:
        """Raise Unavailable if the transfer was broken off."""
        if self._stopped:
            raise Unavailable("the transfer was broken off")

    def stop(self) -> None:
        """Break the transfer off, so that calls that block in the socket return."""
        self._stopped = True
        sock = self._connection.sock if self._connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Transfers:
    """Makes the transfers of one host. All methods block, and raise the controller's error or
    Unavailable."""

    def __init__(
        self, url: str, *, ca_file: str | None, incarnation: str, token: Callable[[], str]
    ) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._path = f"{parts.path.rstrip('/')}/v1/agent/checkpoint"
        self._ca_file = ca_file
        self._incarnation = incarnation
        self._token = token

    def upload(self, key: TaskKey, saved: SavedCheckpoint, sha256: str, wire: Wire) -> int:
        """Send a checkpoint with this checksum; return its number on record.

        Raises:
            Stale, Conflict: its attempt is over. TooLarge: it is over the limit of its queue.
            ValidationError: the bytes changed while they were read.
        """
        query: dict[str, object] = {} if saved.step is None else {"step": saved.step}
        headers = {
            "Content-Length": str(saved.size),
            "Content-Type": "application/octet-stream",
            "Holdfast-Sha256": sha256,
        }
        with self._connect(wire, "the upload broke off") as connection:
            self._begin(connection, "PUT", key, query, headers)
            # An answer that came before the controller closed the connection can still be read.
            with contextlib.suppress(*_CLOSED):
                _send_body(connection, saved, wire)
            answer = connection.getresponse()
            body = answer.read(_MAX_PROBLEM_BYTES)
        if answer.status // 100 != 2:
            raise read_problem(HttpAnswer(answer.status, body))
        return decode_body(decode_checkpoint_stored, body).number

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
        words = {"job": key.job_id, "rank": key.rank, "epoch": key.epoch}
        query = urlencode({**words, "incarnation": self._incarnation})
        target = f"{self._path.removesuffix('/checkpoint')}/{where}?{query}"
        pieces, size = list[bytes](), 0
        with self._connect(wire, "the download broke off") as connection:
            connection.request("GET", target, None, self._common_headers())
            answer = connection.getresponse()
            if answer.status != 200:
                raise read_problem(HttpAnswer(answer.status, answer.read(_MAX_PROBLEM_BYTES)))
            while piece := _read_piece(answer, wire):
                size += len(piece)
                if size > limit_bytes:
                    raise TooLarge(f"it has more than {limit_bytes} bytes")
                pieces.append(piece)
            if answer.length:
                raise Unavailable("the download broke off before its end")
        return b"".join(pieces)

    def send_bytes(
        self, method: str, where: str, key: TaskKey, wire: Wire, body: bytes, *, attempt: int
    ) -> bytes:
        """Send bytes for a task to a path of the agents' API; return the answer's body."""
        words = {"job": key.job_id, "rank": key.rank, "epoch": key.epoch, "attempt": attempt}
        query = urlencode({**words, "incarnation": self._incarnation})
        target = f"{self._path.removesuffix('/checkpoint')}/{where}?{query}"
        with self._connect(wire, "the upload broke off") as connection:
            connection.request(method, target, body, self._common_headers())
            answer = connection.getresponse()
            found = answer.read()
        if answer.status // 100 != 2:
            raise read_problem(HttpAnswer(answer.status, found[:_MAX_PROBLEM_BYTES]))
        return found

    def fetch_value(self, sha256: str, path: Path, wire: Wire) -> None:
        """Fetch a value of at most `MAX_STDIN_BYTES` into `path`, whole or not at all. Raises
        ValidationError if the bytes do not have this SHA-256, OSError if the disk cannot store
        them."""
        part = path.with_name(f".{path.name}.part")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd, digest, size = os.open(part, flags, 0o600), hashlib.sha256(), 0
        try:
            with self._connect(wire, "the download broke off") as connection:
                where = f"{self._path.removesuffix('/checkpoint')}/values/{sha256}"
                connection.request("GET", where, None, self._common_headers())
                answer = connection.getresponse()
                if answer.status != 200:
                    raise read_problem(HttpAnswer(answer.status, answer.read(_MAX_PROBLEM_BYTES)))
                while piece := _read_piece(answer, wire):
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
        headers = {"Content-Type": "application/json", **self._common_headers()}
        with self._connect(wire, "the controller cannot be asked for an older one") as connection:
            connection.request("POST", f"{self._path}/skip", body, headers)
            answer = connection.getresponse()
            found = answer.read(_MAX_PROBLEM_BYTES)
        if answer.status != 200:
            raise read_problem(HttpAnswer(answer.status, found))
        return decode_body(decode_checkpoint_offer, found)

    def _receive(
        self, key: TaskKey, offer: CheckpointOffer, fd: int, wire: Wire
    ) -> tuple[int, str]:
        connection = self._open(wire)
        size, digest = 0, hashlib.sha256()
        try:
            try:
                self._begin(connection, "GET", key, {"number": offer.number}, {})
                answer = connection.getresponse()
                if answer.status != 200:
                    raise read_problem(HttpAnswer(answer.status, answer.read(_MAX_PROBLEM_BYTES)))
            except (OSError, http.client.HTTPException) as error:
                raise Unavailable(f"the controller cannot be asked for it: {error}") from error
            while piece := _read_piece(answer, wire):
                size += len(piece)
                digest.update(piece)
                write_all(fd, piece)
        finally:
            connection.close()
        return size, digest.hexdigest()

    @contextlib.contextmanager
    def _connect(self, wire: Wire, trouble: str) -> Iterator[http.client.HTTPConnection]:
        """Open a connection for one call. Raises Unavailable with `trouble` if the call breaks
        off."""
        connection = self._open(wire)
        try:
            yield connection
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{trouble}: {error}") from error
        finally:
            connection.close()

    def _open(self, wire: Wire) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection
        where = (self._host, self._port)
        if self._tls:
            context = ssl.create_default_context(cafile=self._ca_file)
            connection = http.client.HTTPSConnection(
                *where, timeout=SILENCE_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(*where, timeout=SILENCE_SECONDS)
        wire.use(connection)
        try:
            connection.connect()
            wire.check()
        except OSError as error:
            raise Unavailable(f"no connection to {self._host}:{self._port}: {error}") from error
        return connection

    def _common_headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token()}", "Connection": "close"}

    def _begin(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        key: TaskKey,
        query: dict[str, object],
        headers: dict[str, str],
    ) -> None:
        words = {"job": key.job_id, "rank": key.rank, "epoch": key.epoch}
        words |= {"incarnation": self._incarnation, **query}
        target = f"{self._path}?{urlencode(words)}"
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in {**headers, **self._common_headers()}.items():
            connection.putheader(name, value)
        connection.endheaders()


def _send_body(connection: http.client.HTTPConnection, saved: SavedCheckpoint, wire: Wire) -> None:
    at = 0
    while at < saved.size and not _is_answered(connection):
        piece = os.pread(saved.fd, min(PIECE_BYTES, saved.size - at), at)
        if not piece:
            shorter = "the file became shorter while it was read"
            raise ValidationError(shorter, code="checksum_mismatch")
        connection.send(piece)
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


def _is_answered(connection: http.client.HTTPConnection) -> bool:
    """Return True if an answer came, because a controller that refuses answers at once, and the
    rest need not be sent. (Over TLS a record of the session may look like an answer, so all is
    sent.)"""
    if isinstance(connection.sock, ssl.SSLSocket):
        return False
    poll = select.poll()  # select() fails for descriptors from 1024 on
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _read_piece(answer: http.client.HTTPResponse, wire: Wire) -> bytes:
    try:
        piece = answer.read(PIECE_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(f"the download broke off: {error}") from error
    wire.check()
    return piece
