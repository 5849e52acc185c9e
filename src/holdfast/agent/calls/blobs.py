"""Large values of calls between the blob store and the folder that executors read and write."""

import contextlib
import hashlib
import http.client
import os
import re
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.agent.uplink.calls import read_problem
from holdfast.agent.uplink.http import HttpAnswer
from holdfast.errors import Unavailable, ValidationError

SILENCE_SECONDS = 30.0
KEEP_SECONDS = 3600.0
_PIECE_BYTES = 1 << 20
_MAX_PROBLEM_BYTES = 64 * 1024
_SHA = re.compile(r"[0-9a-f]{64}")


class BlobCarrier:
    """Carries blobs over connections of their own. Blocks."""

    def __init__(
        self, url: str, *, ca_file: str | None, folder: Path, token: Callable[[], str]
    ) -> None:
        parts = urlsplit(url)
        self._tls = parts.scheme == "https"
        self._where = parts.hostname or "", parts.port or (443 if self._tls else 80)
        self._path = f"{parts.path.rstrip('/')}/v1/agent/values"
        self._ca_file, self._folder, self._token = ca_file, folder, token

    def move(self, way: str, sha256: str) -> None:
        """Bring a blob into the folder ("fetch"), or from there into the blob store ("keep").

        Raises:
            Unavailable: the controller cannot be asked now. NotFound, TooLarge: its refusal.
            ValidationError: other bytes came. OSError: the folder's disk does not take them.
        """
        if not _SHA.fullmatch(sha256):
            raise ValidationError(f"{sha256[:80]!r} is no SHA-256")
        self._clear()
        if way == "keep":
            self._keep(sha256)
        elif not (self._folder / sha256).exists():
            self._fetch(sha256)

    def _keep(self, sha256: str) -> None:
        path = self._folder / sha256
        with path.open("rb") as file, self._connect() as connection:
            headers = {
                **self._headers(),
                "Content-Length": str(os.fstat(file.fileno()).st_size),
                "Content-Type": "application/octet-stream",
                "Holdfast-Sha256": sha256,
            }
            connection.request("PUT", f"{self._path}/{sha256}", file, headers)
            answer = connection.getresponse()
            body = answer.read(_MAX_PROBLEM_BYTES)
        if answer.status // 100 != 2:
            raise read_problem(HttpAnswer(answer.status, body))
        path.unlink(missing_ok=True)

    def _fetch(self, sha256: str) -> None:
        path = self._folder / sha256
        part = path.with_name(f".{sha256}.{os.getpid()}.{time.monotonic_ns()}.part")
        digest = hashlib.sha256()
        try:
            with self._connect() as connection, part.open("xb") as file:
                connection.request("GET", f"{self._path}/{sha256}", None, self._headers())
                answer = connection.getresponse()
                if answer.status != 200:
                    raise read_problem(HttpAnswer(answer.status, answer.read(_MAX_PROBLEM_BYTES)))
                while piece := answer.read(_PIECE_BYTES):
                    digest.update(piece)
                    file.write(piece)
            if digest.hexdigest() != sha256:
                raise ValidationError(f"other bytes came than those of {sha256}")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    def _clear(self) -> None:
        """Delete what lies in the folder for long, because its executor is gone."""
        old = time.time() - KEEP_SECONDS
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < old:
                    path.unlink()

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token()}", "Connection": "close"}

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
