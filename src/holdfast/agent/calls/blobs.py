"""Move large values and checkpoints of calls between the blob store and the folder of the
executors."""

import contextlib
import hashlib
import http.client
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from holdfast.agent.uplink.calls import read_problem
from holdfast.agent.uplink.http import HttpAnswer
from holdfast.core.ids import TaskKey
from holdfast.errors import NotFound, Unavailable, ValidationError
from holdfast.wire.calls import CallSave

SILENCE_SECONDS = 30.0
KEEP_SECONDS = 3600.0
_PIECE_BYTES = 1 << 20
_MAX_PROBLEM_BYTES = 64 * 1024
_SHA = re.compile(r"[0-9a-f]{64}")


class BlobCarrier:
    """Moves blobs over connections of their own. Its methods block."""

    def __init__(
        self, url: str, *, ca_file: str | None, folder: Path, token: Callable[[], str]
    ) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._where = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._path = f"{parts.path.rstrip('/')}/v1/agent"
        self._ca_file, self._folder, self._token = ca_file, folder, token

    def move(self, way: str, sha256: str) -> None:
        """Bring a blob into the folder ("fetch"), or from there into the blob store ("keep").

        Raises:
            Unavailable: the controller cannot be reached now. NotFound, TooLarge: it refused.
            ValidationError: other bytes came. OSError: the folder's disk cannot store them.
        """
        if not _SHA.fullmatch(sha256):
            raise ValidationError(f"{sha256[:80]!r} is no SHA-256")
        self._clear()
        path, where = self._folder / sha256, f"/values/{sha256}"
        if way == "keep":
            self._send(path, where, sha256)
        elif not path.exists():
            self._receive(path, where, sha256)

    def move_checkpoint(self, key: TaskKey, save: CallSave) -> bool:
        """Send a call's checkpoint to the controller, or fetch the one that an earlier attempt
        of the call saved. Return False if that attempt saved none. Raises as `move` does, and
        Conflict if the call is not the executor's any more."""
        self._clear()
        task = {"job": key.job_id, "rank": key.rank, "epoch": key.epoch}
        query = urlencode({**task, "batch": save.batch, "position": save.position})
        path, where = self._folder / save.file_name, f"/call-checkpoint?{query}"
        if save.sha256:
            self._send(path, where, save.sha256)
            return True
        try:
            self._receive(path, where)
        except NotFound:
            return False
        return True

    def _send(self, path: Path, where: str, sha256: str) -> None:
        with path.open("rb") as file, self._connect() as connection:
            headers = {
                **self._headers(),
                "Content-Length": str(os.fstat(file.fileno()).st_size),
                "Content-Type": "application/octet-stream",
                "Holdfast-Sha256": sha256,
            }
            connection.request("PUT", self._path + where, file, headers)
            answer = connection.getresponse()
            body = answer.read(_MAX_PROBLEM_BYTES)
        if answer.status // 100 != 2:
            raise read_problem(HttpAnswer(answer.status, body))
        path.unlink(missing_ok=True)

    def _receive(self, path: Path, where: str, sha256: str | None = None) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.part")
        digest = hashlib.sha256()
        try:
            with self._connect() as connection, part.open("xb") as file:
                connection.request("GET", self._path + where, None, self._headers())
                answer = connection.getresponse()
                if answer.status != 200:
                    raise read_problem(HttpAnswer(answer.status, answer.read(_MAX_PROBLEM_BYTES)))
                while piece := answer.read(_PIECE_BYTES):
                    digest.update(piece)
                    file.write(piece)
            wanted = sha256 or answer.getheader("Holdfast-Sha256")
            if digest.hexdigest() != wanted:
                raise ValidationError(f"other bytes came than those of {wanted}")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Delete files that have lain in the folder for an hour, because their executors are
        gone."""
        old = time.time() - KEEP_SECONDS
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < old:
                    path.unlink()

    def _headers(self) -> dict[str, str]:
        # Without "Connection: close", because the controller would close the connection while
        # refused bytes still come, and the reset would lose the reason of the refusal (HTTP-3).
        return {"Authorization": f"Bearer {self._token()}"}

    @contextlib.contextmanager
    def _connect(self) -> Iterator[http.client.HTTPConnection]:
        connection: http.client.HTTPConnection
        if self._tls:
            context = ssl.create_default_context(cafile=self._ca_file)
            connection = http.client.HTTPSConnection(
                *self._where, timeout=SILENCE_SECONDS, context=context
            )
        else:
            connection = http.client.HTTPConnection(*self._where, timeout=SILENCE_SECONDS)
        try:
            connection.connect()
            yield connection
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            raise Unavailable(f"the controller cannot be asked: {error}") from error
        finally:
            connection.close()
