"""One try of one delivery over the network: resolve, judge, connect to the judged address, post,
read the status.

The streams of `http`, without its pool: one connection for each try. A pool keyed by address could
hand a connection whose certificate was checked for one name to another name on that address; and
here the total time limit, the bound on what is read and the refusal of redirects are in plain
sight. The environment's proxies are not used, because they would resolve names again.
"""

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.core.webhooks.targets import WebhookTarget, as_address, judge_addresses, parse_target
from holdfast.core.webhooks.values import DeliveryAnswer, make_headers, read_retry_after
from holdfast.errors import HoldfastError, ValidationError
from holdfast.http.answers import AnswerReader, BadAnswer, write_head
from holdfast.http.asynchronous import AsyncDialer, AsyncStream
from holdfast.version import VERSION

log = logging.getLogger("holdfast.webhooks")
MAX_BODY_BYTES = 4 * 1024
BODY_SECONDS = 1.0  # for reading on after the status, so that the receiver can finish its answer
MAX_LOOKUPS = 16
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class TargetRefused(HoldfastError, code="webhook_target_refused", status=422):
    """The target may not be called."""


class Resolver:
    """Looks names up in threads of its own.

    A look-up cannot be broken off, and a silent name server delays one for minutes. The loop's other
    threads and the end of the process must not wait for it, so these threads are daemons, and there
    are at most `MAX_LOOKUPS`.
    """

    def __init__(self) -> None:
        self._room = threading.BoundedSemaphore(MAX_LOOKUPS)

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return every address of `host`. Raises OSError."""
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[str]] = loop.create_future()

        def settle(addresses: Sequence[str], error: OSError | None) -> None:
            if not found.done():
                found.set_result(addresses) if error is None else found.set_exception(error)

        def look_up() -> None:
            addresses: list[str] = []
            failure: OSError | None = None
            try:
                rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
                addresses = list(dict.fromkeys(str(row[4][0]) for row in rows))
            except (OSError, UnicodeError) as error:
                failure = error if isinstance(error, OSError) else OSError(str(error))
            finally:
                self._room.release()
            try:
                loop.call_soon_threadsafe(settle, addresses, failure)
            except RuntimeError:
                pass  # the loop is closed, so no caller waits any more

        if not self._room.acquire(blocking=False):
            raise OSError(f"{MAX_LOOKUPS} look-ups wait for the name server already")
        threading.Thread(target=look_up, name="webhook-look-up", daemon=True).start()
        return await found


class Sender:
    """Sends deliveries.

    resolve: looks up the addresses of a name. tls: the context for https, by default with the
    system's certificates. wall_clock: returns Unix seconds, for the timestamp that is signed.
    """

    def __init__(
        self,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._resolve = resolve or Resolver()
        self._tls = tls
        self._wall_clock = wall_clock

    async def check_target(self, url: str, *, allow_private: bool, seconds: float) -> None:
        """Raise ValidationError or TargetRefused for a URL that no try could be sent to. A name
        that does not resolve now may do so later."""
        target = parse_target(url, allow_private=allow_private)
        try:
            async with asyncio.timeout(seconds):
                await self._find_addresses(target, allow_private)
        except (OSError, TimeoutError):
            pass

    async def send(
        self,
        url: str,
        webhook_id: str,
        delivery_id: str,
        secrets: Sequence[str],
        body: bytes,
        *,
        allow_private: bool,
        seconds: float,
    ) -> DeliveryAnswer:
        """Make one try, at most `seconds` long from the look-up to the status. Never raises: the
        answer says what went wrong."""
        timestamp = int(self._wall_clock())
        headers = make_headers(webhook_id, delivery_id, secrets, timestamp, body)
        began = time.perf_counter()
        try:
            answer = await self._try(url, headers, body, allow_private, seconds)
        except TimeoutError:
            answer = DeliveryAnswer(error=f"no answer within {seconds:g} s")
        except (TargetRefused, ValidationError) as error:
            answer = DeliveryAnswer(error=f"refused: {error.message}")
        except ssl.SSLCertVerificationError as error:
            answer = DeliveryAnswer(error=f"the certificate does not hold: {error.verify_message}")
        except BadAnswer as error:
            answer = DeliveryAnswer(error=str(error))
        except OSError as error:  # also ssl.SSLError
            answer = DeliveryAnswer(
                error=f"cannot be reached: {error.strerror or error or type(error).__name__}"
            )
        return msgspec.structs.replace(answer, seconds=time.perf_counter() - began)

    async def _try(
        self, url: str, headers: dict[str, str], body: bytes, allow_private: bool, seconds: float
    ) -> DeliveryAnswer:
        target = parse_target(url, allow_private=allow_private)
        sending: asyncio.Task[None] | None = None
        stream: AsyncStream | None = None
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._find_addresses(target, allow_private)
                stream = await self._connect(target, addresses, seconds)
                # In a task of its own, because a receiver may answer before it has read everything.
                data = _make_request(target, headers, body)
                sending = asyncio.create_task(stream.send(data, seconds))
                head = await _read_head(stream, seconds)
            # Outside the time limit, which must not lose a status that came.
            await _read_rest(stream, head)
            return _judge(head)
        finally:
            if stream is not None:
                stream.close()
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)

    async def _find_addresses(self, target: WebhookTarget, allow_private: bool) -> Sequence[str]:
        """Return every address of a target. Raises TargetRefused for one not allowed (HOOK-4)."""
        literal = as_address(target.host) is not None
        addresses = [target.host] if literal else await self._resolve(target.host, target.port)
        reason = judge_addresses(addresses, allow_private=allow_private)
        if reason is not None:
            text = reason if literal else f"{target.host} may not be called: {reason}"
            raise TargetRefused(text, field="url")
        return addresses

    async def _connect(
        self, target: WebhookTarget, addresses: Sequence[str], seconds: float
    ) -> AsyncStream:
        """Connect to the first address that accepts; the certificate must be for the name."""
        failure: OSError = ConnectionError("the name has no address")
        for number, address in enumerate(addresses, 1):
            # Only the last address may use all the time that is left.
            limit = seconds if number == len(addresses) else 2.0
            try:
                stream = await AsyncDialer().open(address, target.port, limit)
            except OSError as error:
                failure = error
                continue
            if target.scheme == "https":
                try:
                    await stream.secure(self._context(), target.host, seconds)
                except BaseException:
                    stream.close()
                    raise
            return stream
        raise failure

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _make_request(target: WebhookTarget, headers: dict[str, str], body: bytes) -> bytes:
    words = [
        ("Host", target.host_header),
        ("User-Agent", f"holdfast/{VERSION}"),
        *headers.items(),
        ("Content-Length", str(len(body))),
        ("Connection", "close"),
    ]
    return write_head("POST", target.path, words) + body


async def _read_head(stream: AsyncStream, seconds: float) -> AnswerReader:
    """Return the answer once its head has come. Interim answers (1xx) are skipped. Raises OSError
    and BadAnswer."""
    answer = AnswerReader()
    while not answer.status:
        data = await stream.receive(seconds)
        if not data:
            raise ConnectionResetError("it hung up before it answered")
        try:
            answer.feed(data)
        except BadAnswer:
            if not answer.status:  # a lie about the body does not matter
                raise
    return answer


def _judge(answer: AnswerReader) -> DeliveryAnswer:
    wish = answer.headers.get("retry-after")
    return DeliveryAnswer(
        status=answer.status,
        retry_after_seconds=None if wish is None else read_retry_after(wish, datetime.now(UTC)),
        error=_say(answer.status),
    )


def _say(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"the receiver answered {status}; redirects are not followed, so give its final url"
    return f"the receiver answered {status}"


async def _read_rest(stream: AsyncStream, answer: AnswerReader) -> None:
    """Read a little of the body and drop it. No error here changes the status."""
    room = MAX_BODY_BYTES
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while room > 0 and not answer.done:
                data = await stream.receive(BODY_SECONDS)
                room -= len(data)
                answer.feed(data)
    except (OSError, BadAnswer):
        pass
