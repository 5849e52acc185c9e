"""Run the embedded database of a `holdfast up` by a thread, because its start blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.cli.up.folder import DataFolder
from holdfast.process.loop import write_instant

if TYPE_CHECKING:
    from holdfast.store.embedded.postgres import EmbeddedPostgres


class Database:
    """Starts and stops PostgreSQL. tell: called with `database_ready` and the DSN,
    `database_failed` and the error, or `database_died`."""

    def __init__(self, folder: DataFolder, tell: Callable[[str, Any], None]) -> None:
        self._folder = folder
        self._tell = tell
        self._postgres: EmbeddedPostgres | None = None
        self._starting = threading.Event()

    @property
    def starting(self) -> bool:
        """Return True if a start is under way, which has to end before a stop."""
        return self._starting.is_set()

    def start(self) -> None:
        """Begin to start PostgreSQL; `tell` is called with the result."""
        self._starting.set()
        threading.Thread(target=self._run, daemon=True, name="database").start()

    def _run(self) -> None:
        from holdfast.store.embedded.postgres import EmbeddedPostgres

        try:
            if self._postgres is None:
                self._postgres = EmbeddedPostgres(self._folder.postgres_folder, log=self._log)
            dsn = self._postgres.start()
        except Exception as error:
            self._starting.clear()
            self._tell("database_failed", error)
            return
        self._starting.clear()
        self._tell("database_ready", dsn)
        self._postgres.wait()
        self._tell("database_died", None)

    def stop(self, timeout_seconds: float) -> None:
        """Stop PostgreSQL, if it was started. Raises the errors of `EmbeddedPostgres.stop`."""
        if self._postgres is not None:
            self._postgres.stop(timeout_seconds)

    def _log(self, sentence: str) -> None:
        try:
            with self._folder.log_file("database").open("a") as file:
                file.write(f"{write_instant(time.time())} {sentence}\n")
        except OSError:
            pass
