"""What the common commands import: nothing that they do not use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.wire.api import Why
from tests.unit.cli.stub import JOB, Answer, Stub, job_record

# Libraries of the controller, of a host and of rare commands: each costs a person tens of
# milliseconds of every command.
UNUSED = {
    "asyncio",
    "httpcore",
    "httpx",
    "multiprocessing",
    "obstore",
    "psutil",
    "psycopg",
    "pydantic",
    "rich",
    "ssl",
    "starlette",
    "typing_extensions",
    "uvicorn",
    "uvloop",
    "yaml",
    "zmq",
    "holdfast.agent",
    "holdfast.controller",
    "holdfast.moves",
    "holdfast.providers",
    "holdfast.store",
    "holdfast.supervisor",
    "holdfast.functions",
}

NOTES = """
import sys
sys.argv = ["holdfast", *sys.argv[1:]]
from holdfast.__main__ import main
try:
    main()
finally:
    print("imported:", *sys.modules, file=sys.stderr, flush=True)
"""


def list_imports(stub: Stub, *words: str) -> set[str]:
    """Return the modules in memory at the end of a command that has done its work."""
    given = {"HOLDFAST_URL": stub.url, "HOLDFAST_TOKEN": "secret"}
    done = subprocess.run(
        [sys.executable, "-c", NOTES, *words],
        env={**os.environ, **given},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return set(done.stderr.partition("imported:")[2].split())


def test_a_session_imports_no_client_beside_its_own_line() -> None:
    """The whole of a short `exec` may cost little more than `version`."""
    said = (
        "import sys; from holdfast.cli.sessions import exec;"
        "print({'holdfast.client.synchronous', 'holdfast.core.records', 'holdfast.core.settings.table',"
        "'asyncio', 'ssl'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_guardian_imports_neither_click_nor_extensions() -> None:
    """It lives for as long as the host, and reads no words of a user."""
    said = (
        "import sys; from holdfast.cli.up import run_part; run_part._load_agent();"
        "print({'click', 'typing_extensions'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-P", "-c", said], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


@pytest.mark.parametrize(
    "words", [("jobs",), ("show", JOB), ("why", JOB), ("logs", JOB), ("cancel", JOB), ("hosts",)]
)
def test_a_common_command_imports_nothing_that_it_does_not_use(
    stub: Stub, words: tuple[str, ...]
) -> None:
    job = job_record(state="cancelled")
    why = Why(job_id=JOB, state="cancelled", summary="by a test", lines=[])
    empty = Answer({"items": [], "next": None})
    stub.on("GET /v1/jobs", Answer({"items": [job], "next": None}))
    stub.on("GET /v1/hosts", empty)
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job))
    for part in ("attempts", "tasks", "events", "checkpoints", "logs/streams"):
        stub.on(f"GET /v1/jobs/{JOB}/{part}", empty)
    stub.on(f"GET /v1/jobs/{JOB}/why", Answer(why))
    stub.on(f"GET /v1/jobs/{JOB}/logs", Answer(b"hi\n", kind="application/octet-stream"))
    stub.on(f"POST /v1/jobs/{JOB}/cancel", Answer(job))
    found = list_imports(stub, *words)
    assert {"httptools", "msgspec"} <= found  # it asked the controller
    assert not found & UNUSED
