"""One try of one delivery over the network: resolve, judge, connect to the judged address, post,
read the status.

Plain h11, one connection for each try. A pool keyed by address could hand a connection whose
certificate was checked for one name to another name on that address; and here the total time limit,
the bound on what is read and the refusal of redirects are in plain sight. The environment's proxies
are not used, because they would resolve names again.
"""

import asyncio
import logging
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

import h11
import msgspec

from holdfast.core.webhooks.targets import WebhookTarget, as_address, judge_addresses, parse_target
from holdfast.core.webhooks.values import DeliveryAnswer, make_headers, read_retry_after
from holdfast.errors import HoldfastError, ValidationError

log = logging.getLogger("holdfast.webhooks")
MAX_HEAD_BYTES = 16 * 1024
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
        except h11.ProtocolError as error:
            answer = DeliveryAnswer(error=f"the answer is not HTTP: {error}")
        except OSError as error:  # also ssl.SSLError
            answer = DeliveryAnswer(
                error=f"cannot be reached: {error.strerror or error or type(error).__name__}"
            )
        return msgspec.structs.replace(answer, seconds=time.perf_counter() - began)

    async def _try(
        self, url: str, headers: dict[str, str], body: bytes, allow_private: bool, seconds: float
    ) -> DeliveryAnswer:
        target = parse_target(url, allow_private=allow_private)
        connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)
        sending: asyncio.Task[None] | None = None
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._find_addresses(target, allow_private)
                reader, writer = await self._connect(target, addresses)
                data = _make_request(connection, target, headers, body)
                sending = asyncio.create_task(_send_all(writer, data))
                answer = await _read_status(reader, connection)
            # Outside the time limit, which must not lose a status that came.
            await _read_rest(reader, connection)
            return answer
        finally:
            if writer is not None:
                writer.transport.abort()  # a polite close would wait for a receiver that does not read
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
        self, target: WebhookTarget, addresses: Sequence[str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the first address that accepts; the certificate must be for the name."""
        tls = self._context() if target.scheme == "https" else None
        failure: OSError | None = None
        for number, address in enumerate(addresses):
            last = number == len(addresses) - 1
            try:
                # Only the last address may use all the time that is left.
                async with asyncio.timeout(None if last else 2.0):
                    return await asyncio.open_connection(
                        address,
                        target.port,
                        limit=MAX_HEAD_BYTES,
                        ssl=tls,
                        server_hostname=target.host if tls is not None else None,
                    )
            except ssl.SSLError:
                raise  # the address answers, but its certificate is not valid
            except TimeoutError as error:
                if last:
                    raise
                failure = error
            except OSError as error:
                failure = error
        assert failure is not None
        raise failure

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _make_request(
    connection: h11.Connection, target: WebhookTarget, headers: dict[str, str], body: bytes
) -> bytes:
    from holdfast.version import VERSION

    request = h11.Request(
        method="POST",
        target=target.path,
        headers=[
            ("Host", target.host_header),
            ("User-Agent", f"holdfast/{VERSION}"),
            *headers.items(),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ],
    )
    parts = [connection.send(event) for event in (request, h11.Data(body), h11.EndOfMessage())]
    return b"".join(part for part in parts if part)


async def _send_all(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send, in a task of its own, because a receiver may answer before it has read everything."""
    writer.write(data)
    await writer.drain()


async def _read_status(reader: asyncio.StreamReader, connection: h11.Connection) -> DeliveryAnswer:
    """Return the final status and its Retry-After. Interim answers (1xx) are skipped, within
    `MAX_HEAD_BYTES` in all."""
    room = MAX_HEAD_BYTES
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(4096)
            room -= len(data)
            if not data:
                raise ConnectionResetError("it hung up before it answered")
            if room < 0:
                raise h11.RemoteProtocolError(f"its head is over {MAX_HEAD_BYTES} bytes")
            connection.receive_data(data)
        elif isinstance(event, h11.Response):
            wish = next((value for name, value in event.headers if name == b"retry-after"), None)
            seconds = None
            if wish is not None:
                seconds = read_retry_after(wish.decode("latin-1"), datetime.now(UTC))
            return DeliveryAnswer(
                status=event.status_code, retry_after_seconds=seconds, error=_say(event.status_code)
            )
        elif not isinstance(event, h11.InformationalResponse):
            raise h11.RemoteProtocolError("no status came")


def _say(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"the receiver answered {status}; redirects are not followed, so give its final url"
    return f"the receiver answered {status}"


async def _read_rest(reader: asyncio.StreamReader, connection: h11.Connection) -> None:
    """Read a little of the body and drop it. No error here changes the status."""
    room = MAX_BODY_BYTES
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while room > 0:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    connection.receive_data(await reader.read(room))
                elif isinstance(event, h11.Data):
                    room -= len(event.data)
                else:
                    return
    except (OSError, TimeoutError, h11.ProtocolError):
        pass
