"""Make the agent's calls to its controller, with values as arguments and answers."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast import errors
from holdfast.bounds import UNREADABLE
from holdfast.errors import ConnectionLost, HoldfastError, Unavailable
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.courier import HttpAnswer, HttpRequest
from holdfast.wire import agent as wire
from holdfast.wire import health
from holdfast.wire.api import Problem
from holdfast.wire.calls import CallsAnswer, CallsRequest
from holdfast.wire.data import caches
from holdfast.wire.logs.uploads import (
    LogReadAnswer,
    LogsAnswer,
    LogsRequest,
    LogUpload,
    decode_logs_answer,
    encode_logs,
)
from holdfast.wire.sessions.messages import SessionEnd

Value = TypeVar("Value")
_encode_calls = msgspec.msgpack.Encoder().encode
_decode_calls = msgspec.msgpack.Decoder(CallsAnswer).decode

CALL_SECONDS = 10.0  # beyond the time for which the call asks the controller to wait
MAX_ANSWER_BYTES = 64 << 20

_BY_STATUS: dict[int, type[HoldfastError]] = {
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    422: errors.ValidationError,
}


def read_problem(answer: HttpAnswer) -> HoldfastError:
    """Return the error that an answer carries; Unavailable if the answer did not come from a
    controller."""
    try:
        problem = msgspec.json.decode(answer.body, type=Problem)
    except UNREADABLE:
        # A proxy may have sent it: only a controller's refusal may make the agent give work up.
        return Unavailable(f"the controller answered with status {answer.status}")
    kind = _BY_STATUS.get(answer.status, Unavailable)
    return kind(problem.detail or problem.title or f"status {answer.status}", code=problem.code)


class ControllerCalls:
    """Makes typed calls to the controller. Each raises the controller's error, or Unavailable if
    it is unknown whether the controller carried the call out; every call may be repeated.

    answered: called at each answer, so that senders that wait because the controller was away try
    again at once. token: the host's key, sent with each call.
    """

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http
        self.token = ""
        self.answered: Callable[[], None] = lambda: None

    async def register(self, request: wire.RegisterRequest, token: str) -> wire.RegisterAnswer:
        """Register this host with a join token or the host's key."""
        body = await self._post(
            "/v1/agent/register", wire.encode(request), token=token, timeout_seconds=CALL_SECONDS
        )
        return decode_body(wire.decode_register_answer, body)

    async def sync(self, request: wire.SyncRequest) -> wire.SyncAnswer:
        """Send this host's state and return the controller's commands; the controller waits for
        `request.wait_seconds` at most."""
        seconds, data = request.wait_seconds + CALL_SECONDS, wire.encode(request)
        body = await self._post("/v1/agent/sync", data, timeout_seconds=seconds)
        return decode_body(wire.decode_sync_answer, body)

    async def send_logs(
        self, uploads: list[LogUpload], reads: list[LogReadAnswer] | None = None
    ) -> LogsAnswer:
        """Send log bytes, and the bytes of logs that readers asked for."""
        data = encode_logs(LogsRequest(uploads=uploads, reads=reads or []))
        body = await self._post(
            "/v1/agent/logs", data, kind="application/msgpack", timeout_seconds=30.0
        )
        return decode_body(decode_logs_answer, body) if body else LogsAnswer()

    async def exchange_calls(self, request: CallsRequest) -> CallsAnswer:
        """Report on executors and return their next batches of calls; the controller waits for
        `request.wait_seconds` at most."""
        body = await self._post(
            "/v1/agent/calls",
            _encode_calls(request),
            kind="application/msgpack",
            timeout_seconds=request.wait_seconds + CALL_SECONDS,
        )
        return decode_body(_decode_calls, body)

    async def send_forensics(self, forensics: wire.Forensics) -> None:
        """Send the forensics of one kill."""
        await self._post("/v1/agent/forensics", wire.encode(forensics), timeout_seconds=30.0)

    async def tell_caches(self, report: caches.CachesReport) -> None:
        """Tell which caches are warm on this host."""
        await self._post("/v1/agent/caches", caches.encode(report), timeout_seconds=CALL_SECONDS)

    async def ask_health(self, request: health.HealthRequest) -> health.HealthAnswer:
        """Report a health check, and ask for the next one."""
        body = await self._post(
            "/v1/agent/health", health.encode(request), timeout_seconds=CALL_SECONDS
        )
        return decode_body(health.decode_answer, body)

    async def ask_controllers(self) -> wire.ControllersAnswer:
        """Ask where the cluster's controllers serve."""
        body = await self._post("/v1/agent/controllers", b"{}", timeout_seconds=CALL_SECONDS)
        return decode_body(wire.decode_controllers_answer, body)

    async def end_session(self, session_id: str, end: SessionEnd) -> None:
        """Report that a session is over."""
        path = f"/v1/agent/sessions/{session_id}/end"
        await self._post(path, wire.encode(end), timeout_seconds=CALL_SECONDS)

    async def _post(
        self,
        path: str,
        data: bytes,
        *,
        timeout_seconds: float,
        token: str | None = None,
        kind: str = "application/json",
    ) -> bytes:
        headers = {"Authorization": f"Bearer {token or self.token}", "Content-Type": kind}
        request = HttpRequest(
            "POST", path, timeout_seconds, headers=headers, body=data, repeatable=True
        )
        try:
            answer = await self._http.call(request, MAX_ANSWER_BYTES)
        except ConnectionLost as error:
            where = f"the controller at {self._http.urls}"
            raise Unavailable(f"{where} cannot be reached: {error.message}") from error
        if answer.status // 100 != 2:
            raise read_problem(answer)
        self.answered()
        return answer.body


def decode_body(decode: Callable[[bytes], Value], body: bytes) -> Value:
    """Decode an answer's body. Raises Unavailable."""
    try:
        return decode(body)
    except UNREADABLE as error:
        raise Unavailable(f"the controller's answer makes no sense: {error}") from error
