"""PgQueuer on the same PostgreSQL, in a scratch environment of its own: no-op jobs, enqueued and run.

`python pgqueuer_loop.py JOBS BATCH CONNECTION` is run by that environment's interpreter; CONNECTION is
JSON of asyncpg's arguments. It prints the seconds of the submission and of the run.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ENQUEUED = 1000
PGQUEUER_BATCH = 500
"""The quickest of 10, 100 and 500."""


def make_environment(folder: Path) -> Path | None:
    """Make the environment, and return its interpreter; None where it cannot be had."""
    python = folder / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "-q", "pgqueuer[asyncpg]"]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
        subprocess.run(install, check=True, timeout=300, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return None
    return python


def measure_pgqueuer(python: Path, dsn: str, jobs: int, batch: int) -> tuple[float, float]:
    """Return seconds of the submission and of the run."""
    from psycopg.conninfo import conninfo_to_dict

    names = {
        "host": "host",
        "port": "port",
        "dbname": "database",
        "user": "user",
        "password": "password",
        "passfile": "passfile",
    }
    given = {**conninfo_to_dict(dsn)}
    connection = {names[k]: v for k, v in given.items() if k in names}
    command = [str(python), __file__, str(jobs), str(batch), json.dumps(connection)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"PgQueuer's run ended with {done.returncode}:\n{done.stderr[-2000:]}")
    submit, run = json.loads(done.stdout.splitlines()[-1])
    return float(submit), float(run)


async def _measure(jobs: int, batch: int, connection: dict[str, Any]) -> tuple[float, float]:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.types import QueueExecutionMode

    one = await asyncpg.connect(**connection)
    driver = AsyncpgDriver(one)
    queue = PgQueuer(driver)
    if not await queue.qm.queries.has_table("pgqueuer"):
        await queue.qm.queries.install()
    done = 0

    @queue.entrypoint("double")
    async def double(job: Any) -> None:
        nonlocal done
        done += 1 if 2 * json.loads(job.payload)[0] >= 0 else 0

    began = time.monotonic()
    for first in range(0, jobs, ENQUEUED):
        payloads: list[bytes | None] = [
            b"[%d]" % i for i in range(first, min(first + ENQUEUED, jobs))
        ]
        size = len(payloads)
        await queue.qm.queries.enqueue(["double"] * size, payloads, [0] * size)
    submitted = time.monotonic()
    await queue.run(batch_size=batch, mode=QueueExecutionMode.drain)
    ended = time.monotonic()
    await one.close()
    if done != jobs:
        raise RuntimeError(f"{done} of {jobs} ran")
    return submitted - began, ended - submitted


if __name__ == "__main__":
    jobs_, batch_, connection_ = sys.argv[1:4]
    print(json.dumps(asyncio.run(_measure(int(jobs_), int(batch_), json.loads(connection_)))))
