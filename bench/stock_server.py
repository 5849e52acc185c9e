"""A PostgreSQL server as its package sets it up: nothing of Holdfast's, just-in-time compilation on.

It stands for a user's own server, in the benchmarks and in tests.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_PACKAGED = Path("/usr/lib/postgresql")  # Debian's and Ubuntu's place
USER = "holdfast"
DATABASE = "postgres"
_START_SECONDS = 60.0


def find_packaged() -> Path | None:
    """Return the folder of programs of the newest packaged server, None where none is installed."""
    found = [
        place
        for place in _PACKAGED.glob("*/bin")
        if place.parent.name.isdigit() and (place / "initdb").exists()
    ]
    return max(found, key=lambda place: int(place.parent.name), default=None)


class StockServer:
    """A new cluster in a scratch folder, under an ordinary user, on a port of loopback.

    `start` makes and starts it; `stop` ends it and deletes its folder.
    """

    def __init__(self) -> None:
        packaged = find_packaged()
        if packaged is None:
            raise RuntimeError(f"no packaged PostgreSQL server is installed in {_PACKAGED}")
        self._programs = packaged
        root = os.geteuid() == 0  # which PostgreSQL refuses, and whose folders others may not enter
        self._folder = Path(
            tempfile.mkdtemp(prefix="holdfast-stock-", dir="/tmp" if root else None)
        )
        self._who: dict[str, Any] = {}
        if root:
            nobody = pwd.getpwnam("nobody")
            self._who = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self._port = int(sock.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Make the cluster and start its server; return the DSN of its maintenance database."""
        data = self._folder / "data"
        # In the folder itself: that of the caller may be closed to the other user.
        how: dict[str, Any] = {
            "cwd": self._folder,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            **self._who,
        }
        made = subprocess.run(
            [self._programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8"],
            stderr=subprocess.PIPE,
            check=False,
            **how,
        )
        if made.returncode:
            raise RuntimeError(made.stderr.decode(errors="replace"))
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", data, "-k", self._folder),
                    *("-p", str(self._port)),
                ],
                stderr=log,
                **how,
            )
        self._await()
        return self.dsn()

    def _await(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            answer = subprocess.run(
                [
                    *(self._programs / "pg_isready", "-q", "-h", "127.0.0.1"),
                    *("-p", str(self._port)),
                ],
                check=False,
            )
            if answer.returncode == 0:
                return
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.05)
        said = (self._folder / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"the stock server did not start: {said}")

    def dsn(self, database: str = DATABASE, *, loopback: bool = True) -> str:
        """Return how to connect to a database of it."""
        place = "127.0.0.1" if loopback else ""
        more = "" if loopback else f"?host={self._folder}&port={self._port}"
        port = f":{self._port}" if loopback else ""
        return f"postgresql://{USER}@{place}{port}/{database}{more}"

    def stop(self) -> None:
        """End the server at once, and delete its folder. Safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGQUIT)  # nothing of it is kept
            process.wait(30)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> StockServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
