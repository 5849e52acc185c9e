"""Move large values and checkpoints of calls between the blob store and the folder of the
executors."""

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.agent.uplink.calls import read_problem
from holdfast.core.ids import TaskKey
from holdfast.errors import NotFound, ValidationError
from holdfast.http.blocking import BlockingHttp
from holdfast.http.courier import HttpAnswer, HttpRequest
from holdfast.wire.calls import CallSave

SILENCE_SECONDS = 30.0
KEEP_SECONDS = 3600.0
_PIECE_BYTES = 1 << 20
_MAX_PROBLEM_BYTES = 64 * 1024
_SHA = re.compile(r"[0-9a-f]{64}")


class BlobCarrier:
    """Moves blobs. Its methods block."""

    def __init__(self, http: BlockingHttp, *, folder: Path, token: Callable[[], str]) -> None:
        self._http, self._folder, self._token = http, folder, token

    def move(self, way: str, sha256: str) -> None:
        """Bring a blob into the folder ("fetch"), or from there into the blob store ("keep").

        Raises:
            Unavailable: the controller cannot be reached now. NotFound, TooLarge: it refused.
            ValidationError: other bytes came. OSError: the folder's disk cannot store them.
        """
        if not _SHA.fullmatch(sha256):
            raise ValidationError(f"{sha256[:80]!r} is no SHA-256")
        self._clear()
        path, where = self._folder / sha256, f"/v1/agent/values/{sha256}"
        if way == "keep":
            self._send(path, where, (), sha256)
        elif not path.exists():
            self._receive(path, where, (), sha256)

    def move_checkpoint(self, key: TaskKey, save: CallSave) -> bool:
        """Send a call's checkpoint to the controller, or fetch the one that an earlier attempt
        of the call saved. Return False if that attempt saved none. Raises as `move` does, and
        Conflict if the call is not the executor's any more."""
        self._clear()
        task = {"job": key.job_id, "rank": key.rank, "epoch": key.epoch}
        words = {**task, "batch": save.batch, "position": save.position}
        query = tuple((name, str(value)) for name, value in words.items())
        path, where = self._folder / save.file_name, "/v1/agent/call-checkpoint"
        if save.sha256:
            self._send(path, where, query, save.sha256)
            return True
        try:
            self._receive(path, where, query)
        except NotFound:
            return False
        return True

    def _send(
        self, path: Path, where: str, query: tuple[tuple[str, str], ...], sha256: str
    ) -> None:
        with path.open("rb") as file:
            headers = {
                **self._headers(),
                "Content-Length": str(os.fstat(file.fileno()).st_size),
                "Content-Type": "application/octet-stream",
                "Holdfast-Sha256": sha256,
            }
            pieces = iter(lambda: file.read(_PIECE_BYTES), b"")
            request = HttpRequest("PUT", where, SILENCE_SECONDS, query, headers, pieces)
            answer = self._http.call(request, _MAX_PROBLEM_BYTES)
        if answer.status // 100 != 2:
            raise read_problem(answer)
        path.unlink(missing_ok=True)

    def _receive(
        self, path: Path, where: str, query: tuple[tuple[str, str], ...], sha256: str | None = None
    ) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.part")
        digest = hashlib.sha256()
        request = HttpRequest(
            "GET", where, SILENCE_SECONDS, query, self._headers(), repeatable=True
        )
        try:
            with self._http.send(request) as answer, part.open("xb") as file:
                if answer.status != 200:
                    body = answer.read(_MAX_PROBLEM_BYTES)
                    raise read_problem(HttpAnswer(answer.status, body))
                for piece in answer.pieces():
                    digest.update(piece)
                    file.write(piece)
            wanted = sha256 or answer.headers.get("holdfast-sha256")
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
        return {"Authorization": f"Bearer {self._token()}"}
