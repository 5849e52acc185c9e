"""A controller for agent tests: real HTTP on loopback, the store a few dictionaries. Small, strict,
and scriptable."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.wire import agent as wire
from holdfast.wire.api import Problem
from holdfast.wire.logs.uploads import LogsAnswer, LogsRequest
from tests.waits import Patience

JOIN_TOKEN = "join-secret"
HOST_KEY = "host-secret"


class FakeController:
    """Holds orders and reports. All fields are guarded by `changed`."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.registrations: list[wire.RegisterRequest] = []
        self.syncs: list[wire.SyncRequest] = []
        self.sync_times: list[float] = []
        self.launches: dict[TaskKey, wire.LaunchOrder] = {}
        self.gangs: list[wire.Gang] = []
        self.preempts: dict[TaskKey, wire.PreemptOrder] = {}
        self.known: set[TaskKey] = set()
        self.lost: set[TaskKey] = set()
        self.states: dict[TaskKey, str] = {}
        self.pids: dict[TaskKey, int] = {}
        self.beats: dict[TaskKey, wire.BeatReport] = {}
        self.ends: dict[TaskKey, TaskFacts] = {}
        self.end_times: dict[TaskKey, float] = {}
        self.refused: set[TaskKey] = set()
        self.logs: dict[tuple[TaskKey, str], dict[int, bytes]] = {}
        self.logs_ended: dict[tuple[TaskKey, str], int] = {}  # → the offset of the end
        self.forensics: list[wire.Forensics] = []
        self.left = False
        self.spent_claim: str | None = None
        self.ttl_seconds = 300.0
        self.interval_seconds = 0.5
        self.news = 0
        self.newest_seq = 0
        self.fail: Callable[[str], tuple[int, Problem] | None] = lambda path: None
        self.delay_seconds = 0.0

    # ---- what tests do

    def launch(self, *argv: str, job: str = "job", epoch: int = 1, **fields: Any) -> TaskKey:
        key = TaskKey(job, 0, epoch)
        fields.setdefault("ttl_seconds", self.ttl_seconds)
        order = wire.LaunchOrder(
            key=key, attempt=1, name=job, queue="cpu", project="default", argv=list(argv), **fields
        )
        with self.changed:
            self.launches[key] = order
            self.known.add(key)
            self._tell()
        return key

    def preempt(self, key: TaskKey, **fields: Any) -> None:
        fields = {"grace_seconds": 5.0, "cause": "preempted", **fields}
        with self.changed:
            self.preempts[key] = msgspec.convert(
                {"key": msgspec.to_builtins(key), **fields}, wire.PreemptOrder
            )
            self._tell()

    def lose(self, key: TaskKey) -> None:
        with self.changed:
            self.known.discard(key)
            self.launches.pop(key, None)
            self._tell()

    def wait(self, holds: Callable[[], Any], seconds: float = 15.0) -> Any:
        patience = Patience(seconds)
        with self.changed:
            while not (found := holds()):
                assert not patience.over, (
                    f"not within {seconds} s; states {self.states}, ends {self.ends}"
                )
                self.changed.wait(0.05)
            return found

    def wait_end(self, key: TaskKey, seconds: float = 15.0) -> TaskFacts:
        facts: TaskFacts = self.wait(lambda: self.ends.get(key), seconds)
        return facts

    def wait_running(self, key: TaskKey) -> int:
        self.wait(lambda: self.states.get(key) == "running" and self.pids.get(key))
        return self.pids[key]

    def log_of(self, key: TaskKey, stream: str = "stdout") -> bytes:
        with self.changed:
            text, end = b"", 0
            for offset, chunk in sorted(self.logs.get((key, stream), {}).items()):
                # An agent that took over begins a little before where the last one was killed
                # (LOGS-1).
                text += chunk[max(0, end - offset) :]
                end = max(end, offset + len(chunk))
            return text

    def wait_logs(self, key: TaskKey, seconds: float = 15.0) -> None:
        self.wait(lambda: {(key, "stdout"), (key, "stderr")} <= self.logs_ended.keys(), seconds)

    # ---- what agents do

    def _tell(self) -> None:
        self.news += 1
        self.changed.notify_all()

    def register(
        self, request: wire.RegisterRequest, token: str
    ) -> wire.RegisterAnswer | tuple[int, Problem]:
        with self.changed:
            if token == JOIN_TOKEN:
                if self.spent_claim is not None and request.claim != self.spent_claim:
                    return 401, Problem(
                        status=401, code="unauthorized", detail="the join token is spent"
                    )
                self.spent_claim = request.claim
            elif token != HOST_KEY:
                return 401, Problem(
                    status=401, code="unauthorized", detail="nobody knows this token"
                )
            self.registrations.append(request)
            self._tell()
            return wire.RegisterAnswer(
                host_id="host1",
                host_key=HOST_KEY if token == JOIN_TOKEN else None,
                sync_interval_seconds=self.interval_seconds,
            )

    def sync(self, request: wire.SyncRequest, token: str) -> wire.SyncAnswer | tuple[int, Problem]:
        if token != HOST_KEY:
            return 401, Problem(status=401, code="unauthorized", detail="nobody knows this token")
        give_up_at = time.monotonic() + request.wait_seconds
        with self.changed:
            if self.registrations and request.incarnation != self.registrations[-1].incarnation:
                return 409, Problem(
                    status=409,
                    code="stale_incarnation",
                    detail="a newer incarnation has registered",
                )
            self.syncs.append(request)
            self.sync_times.append(time.monotonic())
            self.newest_seq = max(self.newest_seq, request.seq)
            self.left = self.left or request.leaving
            answer = self._apply(request)
            self.changed.notify_all()
            seen = self.news
            while not self._says(answer) and request.seq == self.newest_seq and self.news == seen:
                left = give_up_at - time.monotonic()
                if left <= 0:
                    break
                self.changed.wait(left)
            return self._apply(request)

    @staticmethod
    def _says(answer: wire.SyncAnswer) -> bool:
        return bool(
            answer.launch or answer.preempt or answer.lost or answer.acked or answer.refused
        )

    def _apply(self, request: wire.SyncRequest) -> wire.SyncAnswer:
        acked, refused, lost, live = [], [], [], []
        for report in request.tasks:
            key = report.key
            if report.state == "ended":
                assert report.facts is not None
                if key in self.refused:
                    refused.append(wire.RefusedReport(key=key))
                    continue
                self.states[key] = "ended"
                self.ends.setdefault(key, report.facts)
                self.end_times.setdefault(key, time.monotonic())
                self.launches.pop(key, None)
                self.preempts.pop(key, None)
                acked.append(key)
                continue
            live.append(key)
            if key in self.ends:
                continue
            if request.seq < self.newest_seq:
                continue  # answered late, perhaps to a dead agent: what it says has been overtaken
            self.launches.pop(key, None)
            self.states[key] = report.state
            self.pids[key] = report.pid
            if report.beat is not None:
                self.beats[key] = report.beat
            if key not in self.known:
                lost.append(key)
        known = [key for key in live if key in self.known]
        return wire.SyncAnswer(
            launch=list(self.launches.values()),
            gangs=self.gangs,
            preempt=list(self.preempts.values()),
            lost=lost,
            acked=acked,
            refused=refused,
            renewed=[wire.Renewed(key=key, ttl_seconds=self.ttl_seconds) for key in known],
            sync_interval_seconds=self.interval_seconds,
            settings_rev=1,
        )

    def take_logs(self, request: LogsRequest) -> LogsAnswer:
        with self.changed:
            refused = []
            for upload in request.uploads:
                if upload.key in self.refused:
                    refused.append(upload.key)
                    continue
                if upload.data:
                    self.logs.setdefault((upload.key, upload.stream), {})[upload.offset] = (
                        upload.data
                    )
                if upload.ended:
                    end = upload.offset + len(upload.data)
                    self.logs_ended[upload.key, upload.stream] = end
            self.changed.notify_all()
            return LogsAnswer(refused=refused)


def _make_handler(controller: FakeController) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if controller.delay_seconds:
                time.sleep(controller.delay_seconds)
            found: Any = controller.fail(self.path)
            if found is None:
                found = self.answer(body, token)
            if isinstance(found, tuple):
                status, value, kind = found[0], found[1], "application/problem+json"
            else:
                status, value, kind = 200, found, "application/json"
            data = wire.encode(value)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def answer(self, body: bytes, token: str) -> Any:
            if self.path == "/v1/agent/register":
                return controller.register(
                    msgspec.json.decode(body, type=wire.RegisterRequest), token
                )
            if self.path == "/v1/agent/sync":
                return controller.sync(msgspec.json.decode(body, type=wire.SyncRequest), token)
            if self.path == "/v1/agent/logs":
                return controller.take_logs(msgspec.msgpack.decode(body, type=LogsRequest))
            assert self.path == "/v1/agent/forensics"
            with controller.changed:
                controller.forensics.append(msgspec.json.decode(body, type=wire.Forensics))
                controller.changed.notify_all()
            return LogsAnswer()

    return Handler


class Server(ThreadingHTTPServer):
    """Threads are daemons; a broken pipe of a killed agent is no news."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, controller: FakeController, port: int = 0) -> None:
        self._sockets: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _make_handler(controller))

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass

    def process_request(self, request: Any, client_address: Any) -> None:
        self._sockets.add(request)
        super().process_request(request, client_address)

    def cut(self) -> None:
        """Close every connection, as a dying controller does."""
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()


@contextlib.contextmanager
def serve(controller: FakeController, port: int = 0) -> Iterator[str]:
    """Serve `controller`; yields its address. On leaving, all connections are cut and the port
    refuses."""
    server = Server(controller, port)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    )
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        server.cut()
        thread.join(5)
