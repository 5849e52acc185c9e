"""A controller made of answers written down beforehand, over a real socket, and the CLI run
in-process against it."""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from holdfast.cli.main import cli
from holdfast.core.records import HostRecord, JobRecord
from holdfast.core.spec import JobSpec
from holdfast.errors import HoldfastError
from holdfast.wire.api import JobOutcome, Problem

JOB = "06ch2v8wq1m4kz7d9x3t"


def job_record(**fields: Any) -> JobRecord:
    """A job with `fields` over plain ones."""
    plain: dict[str, Any] = {
        "id": JOB, "name": "echo", "project": "default", "queue": "cpu", "priority": 50, "state": "running",
        "reason": "", "tasks": 1, "gpus": 0, "cpu_slots": 1, "memory_bytes": 0, "labels": {},
        "spec": {"argv": ["echo"]}, "epoch": 1, "attempts": 1, "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return msgspec.convert({**plain, **fields}, JobRecord)


def host_record(**fields: Any) -> HostRecord:
    """A host with `fields` over plain ones."""
    plain: dict[str, Any] = {
        "id": "h1", "name": "box", "pool": "", "state": "active", "reason": "", "incarnation": "i", "queues": [],
        "labels": {}, "cpu_slots": 2, "memory_bytes": 0, "gpus": [], "address": "", "version": "", "probe": "real",
        "registered_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return msgspec.convert({**plain, **fields}, HostRecord)


@dataclass
class Answer:
    """One answer. `body` is sent as it is when bytes, as JSON otherwise. `cut`: hang up before the
    body is whole."""

    body: Any = b""
    status: int = 200
    kind: str = "application/json"
    cut: bool = False


def outcomes(*found: JobRecord | HoldfastError) -> Answer:
    """What a call about many jobs says; a refusal is of a job of that id, the text before a colon."""
    items = []
    for one in found:
        if isinstance(one, JobRecord):
            items.append(JobOutcome(id=one.id, job=one))
        else:
            problem = Problem(status=one.status, code=one.code, detail=one.message)
            items.append(JobOutcome(id=one.message.partition(":")[0], problem=problem))
    return Answer({"items": items, "next": None})


@dataclass
class Request:
    """What came."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]

    @property
    def spec(self) -> JobSpec:
        """The body as a job's spec."""
        return msgspec.json.decode(self.body, type=JobSpec)


NO_ARRAYS = {"GET /v1/arrays": [Answer({"items": [], "next": None})]}
"""What a controller without arrays says, which most tests are about."""


@dataclass
class Stub:
    """The stub. `answers` maps `METHOD /path` (without the query) to answers given in turn; the
    last one repeats."""

    url: str = ""
    answers: dict[str, list[Answer]] = field(default_factory=lambda: dict(NO_ARRAYS))
    requests: list[Request] = field(default_factory=list)

    def on(self, what: str, *answers: Answer) -> None:
        """Set the answers to `what`."""
        self.answers[what] = list(answers)

    def run(self, *words: str, env: Mapping[str, str | None] | None = None, **more: Any) -> Result:
        """Run the CLI against the stub. stdout and stderr are apart."""
        given = {"HOLDFAST_URL": self.url, "HOLDFAST_TOKEN": "secret", **(env or {})}
        return CliRunner().invoke(cli, list(words), env=given, **more)


def events(*pairs: tuple[str, Any]) -> bytes:
    """Server-sent events."""
    return b"".join(
        b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(value))
        for kind, value in pairs
    )


@contextmanager
def serve_stub(tls: ssl.SSLContext | None = None) -> Iterator[Stub]:
    """Serve a stub on loopback."""
    stub = Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(
                self.command, self.path, self.rfile.read(length), dict(self.headers.items())
            )
            stub.requests.append(request)
            waiting = stub.answers.get(f"{self.command} {self.path.partition('?')[0]}")
            if not waiting:
                problem = {"status": 404, "code": "not_found", "detail": f"there is no {self.path}"}
                answer = Answer(problem, 404)
            else:
                answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            body = (
                answer.body if isinstance(answer.body, bytes) else msgspec.json.encode(answer.body)
            )
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(body) + (10 if answer.cut else 0)))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = self.close_connection or answer.cut

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _handle

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        stub.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()


def sent(stub: Stub) -> dict[str, Any]:
    """The body of the last request."""
    found: dict[str, Any] = msgspec.json.decode(stub.requests[-1].body)
    return found


def clean_environment() -> dict[str, str | None]:
    """An environment override that hides every Holdfast variable."""
    return {name: None for name in os.environ if name.startswith("HOLDFAST_")}
