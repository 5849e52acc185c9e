"""A process that owns an embedded server, for the tests that kill it.

    python embedded_owner.py FOLDER [RUN_AS [UID]]

Becomes UID first (with what it needs already imported), starts the server, prints one JSON line,
then stays.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path

import psycopg  # here, because after the change of uid its files may be out of reach

from holdfast.errors import HoldfastError
from holdfast.store.embedded.postgres import EmbeddedPostgres


def main() -> None:
    folder, run_as, uid = (*sys.argv[1:], "", "")[:3]
    if uid:
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))
        if not os.access(sys.executable, os.X_OK):
            # An interpreter in root's own home; the launcher runs on any other.
            sys.executable = (
                shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
            )
    postgres = EmbeddedPostgres(Path(folder), run_as=run_as or None)
    result: dict[str, object] = {}

    def work() -> None:
        try:
            dsn = postgres.start()
            with psycopg.connect(dsn) as connection:
                found = connection.execute("show server_version").fetchone()
            result.update(dsn=dsn, pid=postgres.pid, version=str(found))
        except HoldfastError as error:
            result.update(error=error.message, code=error.code, kind=type(error).__name__)

    # In a thread that ends: the server's life must hang on the process, not on the thread that
    # asked for it.
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    print(json.dumps(result), flush=True)
    if "error" in result or sys.stdin.readline() == "stop\n":
        postgres.stop()
        return
    time.sleep(3600)


if __name__ == "__main__":
    main()
