"""What the common commands import: nothing that they do not use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.wire.api import Why
from tests.unit.cli.stub import JOB, Answer, Stub, job_record

# Each costs milliseconds of every command, and none of these commands has a use for it.
UNUSED = [
    "anyio",
    "asyncio",
    "certifi",
    "click",
    "concurrent.futures",
    "dataclasses",
    "email",
    "h11",
    "inspect",
    "http.client",
    "httpcore",
    "httpx",
    "json",
    "logging",
    "multiprocessing",
    "obstore",
    "psutil",
    "psycopg",
    "pydantic",
    "random",
    "pynvml",
    "gettext",
    "typing_extensions",
    "pathlib",
    "rich",
    "pygments",
    "sqlite3",
    "ssl",
    "starlette",
    "subprocess",
    "tempfile",
    "tomllib",
    "unittest",
    "urllib.request",
    "uvicorn",
    "uvloop",
    "xml",
    "yaml",
    "zmq",
    "zoneinfo",
    "holdfast.agent",
    "holdfast.controller",
    "holdfast.core.endings.patterns",
    "holdfast.core.calls",
    "holdfast.core.fleet",
    "holdfast.core.webhooks",
    "holdfast.core.workflows",
    "holdfast.moves",
    "holdfast.process",
    "holdfast.providers",
    "holdfast.store",
    "encodings.idna",
    "hashlib",
    "holdfast.supervisor",
    "holdfast.tasks",
    "holdfast.wire.api",
    "holdfast.wire.pools",
    "holdfast.wire.workflows",
    "holdfast.work",
    "holdfast.wire.webhooks",
]
# What one command uses of it.
USED = {
    "cancel": {"holdfast.wire.api"},
    "hosts": {"click", "gettext", "inspect", "holdfast.wire.api"},
    "logs": {"holdfast.wire.api"},
    "show": {"holdfast.wire.api"},
    "why": {"holdfast.wire.api"},
}

NOTES = """
import os, sys
sys.argv = ["holdfast", *sys.argv[1:]]
def end(code):
    print("imported:", *sys.modules, file=sys.stderr, flush=True)
    leave(code)
leave, os._exit = os._exit, end
from holdfast.__main__ import main
main()
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


def test_a_host_imports_no_click() -> None:
    """Its guardian lives for as long as the host, and reads no words of a user."""
    said = "import sys, holdfast.cli.up.agent; print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", said], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_rank_of_a_supervised_run_imports_no_click() -> None:
    said = (
        "import sys; from holdfast.cli.commands import load_command;"
        "found = load_command('supervised-member').read(['--gpus', '2', '--', 'python', '-u']);"
        "print(found['gpus'], *found['command'], 'click' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-P", "-c", said], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "2 python -u False\n"), done.stderr


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
    assert not found & (set(UNUSED) - USED.get(words[0], set()))
