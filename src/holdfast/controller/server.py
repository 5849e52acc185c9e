"""The controller as a process: open the store, start the loops, serve, and stop in order.

SERVE-1  A stop answers every waiting poll, ends the streams, stops the loops, gives leadership back
         and closes the store, in this order, and waits at most four seconds in all. The stop is the
         same wherever the serving broke off. Agents notice a refused connection and try again;
         running tasks are not touched.
"""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import secrets
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from holdfast.blobs.interface import BlobStore
from holdfast.blobs.locate import open_blobs
from holdfast.controller.app import App
from holdfast.controller.http.callers import StoredSignIns
from holdfast.controller.http.certificate import CertificateFiles, say_validity
from holdfast.controller.http.protocol import BoundedProtocol
from holdfast.controller.http.splice import SplicedProtocol
from holdfast.controller.log_lines import set_up_logging
from holdfast.controller.loops.leader import Leader
from holdfast.controller.runtime.auth import ensure_admin_token, ensure_join_token
from holdfast.controller.runtime.background import keep_going
from holdfast.controller.runtime.bundles.place import OTHER_BLOBS
from holdfast.controller.runtime.context import Controller
from holdfast.core.settings.resolve import layer_from_environment
from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.http.addresses import read_address
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.store import PostgresStore
from holdfast.web.app import WebApp
from holdfast.web.browsers import list_origins
from holdfast.wire.sessions.frames import MAX_MESSAGE_BYTES

log = logging.getLogger("holdfast.controller")
BACKLOG = 4096
EXIT_OTHER_BLOBS = 78
"""The exit status of a server that may not join the others, which another start would not change."""
CERTIFICATE_SECONDS = 86_400.0  # between two warnings about the certificate
RENEWAL_SECONDS = 60.0  # between two looks for a renewed one
COLLECT_AFTER = 10_000  # new objects: a batch of syncs makes thousands, all short-lived
# SERVE-1. The parts get more time than uvicorn gives its connections, so that it can end by itself.
_GRACEFUL_SECONDS = 1
_PARTS_SECONDS = 1.5
_FORCED_SECONDS = 0.3
_STORE_SECONDS = 1.0


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a server.

    port: 0 for any free one, which the log names. token_file: the file that keeps the first admin
    token. join_token_file: a file with a join token for the host that was started together with
    this server, which the token lets in once. insecure_bind: True to allow an address that others
    reach without TLS. database_seconds: how long to wait for the database. blobs: a folder or
    s3://bucket/prefix, the same for all replicas. listen_fd: an inherited listening socket,
    instead of `host` and `port`. advertise: the URL at which the other replicas reach this server;
    without one, the address on which it listens. dashboard_urls: URLs at which browsers reach the
    dashboard besides `holdfast.localhost`, the first of which stands in links.
    """

    dsn: str
    host: str = "127.0.0.1"
    port: int = 0
    token_file: str | None = None
    join_token_file: str | None = None
    log_format: str = "auto"
    tls_cert: str | None = None
    tls_key: str | None = None
    insecure_bind: bool = False
    database_seconds: float = 60.0
    blobs: str | None = None
    listen_fd: int | None = None
    advertise: str | None = None
    dashboard_urls: tuple[str, ...] = ()


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers, because ours stop the whole controller in order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def is_loopback(host: str) -> bool:
    """Return whether only this machine can call the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def name_replica(url: str) -> str:
    """Return the address at which other replicas reach a server that listens at `url`: for a server
    that listens on every address, the machine's name."""
    address = read_address(url)
    if address.host in ("0.0.0.0", "::"):
        return f"{url.partition('://')[0]}://{socket.gethostname()}:{address.port}"
    return url


def check_config(config: ServerConfig) -> None:
    """Raise ValidationError for a configuration that cannot or should not be served."""
    if config.advertise is not None:
        read_address(config.advertise, "--advertise")
    if bool(config.tls_cert) != bool(config.tls_key):
        raise ValidationError("tls_cert and tls_key go together", field="tls_cert")
    if not is_loopback(config.host) and not config.tls_cert:
        if not config.insecure_bind:
            raise ValidationError(
                f"{config.host} can be reached by others, and without TLS they read the tokens: "
                "give --tls-cert and --tls-key, put a TLS proxy before it, or say --insecure-bind "
                "where the network is trusted",
                field="host",
            )
        log.warning(
            "serving %s WITHOUT TLS: tokens and secrets cross the network in the clear", config.host
        )


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a socket to `host`:`port`. Raises ValidationError where that fails."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise ValidationError(f"cannot listen on {host}: {error}", field="host") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        raise ValidationError(
            f"cannot listen on {host} port {port}: {error.strerror}; is another server there?",
            field="port",
        ) from error
    return sock


def adopt_socket(fd: int) -> socket.socket:
    """Use a socket on which the parent process listens too, so that callers wait in its queue while
    a controller is started again. Raises ValidationError for a descriptor that is no socket."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        message = f"descriptor {fd} is no socket: {error.strerror}"
        raise ValidationError(message, field="listen_fd") from error
    sock.setblocking(False)
    return sock


class RunningServer:
    """A controller that serves `store` on a socket, in this process or in a test."""

    def __init__(
        self,
        store: PostgresStore,
        sock: socket.socket,
        *,
        blobs: BlobStore,
        environment: Mapping[str, str] | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
        advertise: str | None = None,
        dashboard_urls: Sequence[str] = (),
    ) -> None:
        self.controller = Controller(store, layer_from_environment(environment or {}), blobs=blobs)
        self._sock = sock
        self._start_id = secrets.token_hex(4)
        self._server = _Server(
            uvicorn.Config(
                WebApp(
                    App(self.controller),
                    StoredSignIns(store, self.controller.guard),
                    lambda: self.controller.origins,
                    lambda: self.controller.wakes.closing,
                    self._say_seen,
                ),
                http=BoundedProtocol,
                ws=SplicedProtocol,
                ws_per_message_deflate=False,
                ws_max_size=MAX_MESSAGE_BYTES,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=_GRACEFUL_SECONDS,
                backlog=BACKLOG,
                ssl_certfile=tls_cert,
                ssl_keyfile=tls_key,
                proxy_headers=False,
            )
        )
        host, port = sock.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls_cert else 'http'}://{shown}:{port}"
        self.controller.url = self.url
        self.controller.origins = list_origins(self.url, dashboard_urls)
        self.controller.replica = advertise or name_replica(self.url)
        self._tls_cert = tls_cert
        self._certificate = CertificateFiles(tls_cert, tls_key) if tls_cert and tls_key else None
        self._next_look: asyncio.TimerHandle | None = None
        self._warned_at: float | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the loops and listen; return when requests are accepted."""
        leader = Leader(self.controller)

        def keep(name: str, begin: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
            return asyncio.create_task(keep_going(name, begin), name=name)

        self._tasks = [
            keep("the stream of hints", self.controller.pump_hints),
            keep("leadership", leader.run),
            asyncio.create_task(self._server.serve(sockets=[self._sock]), name="http"),
            keep("the writer of readings", self.controller.telemetry.run),
            keep("the watch over gangs", self.controller.gangs.run),
            keep("the word that it serves", self.controller.say_serving),
        ]
        self._look_at_certificate()
        while not self._server.started:
            if self._tasks[2].done():
                self._tasks[2].result()
                raise Unavailable("the server stopped while it started")
            await asyncio.sleep(0.005)

    def _say_seen(self) -> str:
        """Return a word that changes with every event and with every start of a controller."""
        return f"{self._start_id}.{self.controller.wakes.topic('events').version}"

    def reload(self, *, unchanged: bool = True) -> None:
        """Serve a renewed certificate to new connections. unchanged: read the files also where they
        did not change. A certificate that cannot be used is logged, and the server goes on with the
        certificate before."""
        context = self._server.config.ssl if self._server.config.loaded else None
        try:
            if self._certificate is not None and context is not None:
                read = self._certificate.reload(context, unchanged=unchanged)
                if read is not None:
                    log.info("%s", read)
                    self._warned_at = None
        except HoldfastError as error:
            log.error("%s", error.message)

    def _look_at_certificate(self) -> None:
        """Serve a renewed certificate, and log each problem of the one that is served, every day."""
        if self._tls_cert is None:
            return
        self.reload(unchanged=False)
        loop = asyncio.get_running_loop()
        if self._warned_at is None or loop.time() >= self._warned_at + CERTIFICATE_SECONDS:
            self._warned_at = loop.time()
            trouble = say_validity(self._tls_cert, datetime.now(UTC))
            if trouble is not None:
                log.error("%s", trouble)
        self._next_look = loop.call_later(RENEWAL_SECONDS, self._look_at_certificate)

    def list_tasks(self) -> list[asyncio.Task[None]]:
        """Return the parts of this server, none of which ends before `stop`."""
        return list(self._tasks)

    async def wait_for_failure(self) -> None:
        """Return or raise when a part ends. No part ends by itself, so any end is a failure."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Stop the parts in order (SERVE-1), as far as they had started."""
        self._server.should_exit = True
        if self._next_look is not None:
            self._next_look.cancel()
        await self.controller.close()
        if self._tasks:
            hints, leader, http, telemetry, gangs, serving = self._tasks
            leader.cancel()
            telemetry.cancel()
            gangs.cancel()
            serving.cancel()
            with contextlib.suppress(TimeoutError, HoldfastError):
                async with asyncio.timeout(_FORCED_SECONDS):
                    await self.controller.store.hosts.forget_controller(self.controller.replica)
            hints.cancel()
            await asyncio.wait(self._tasks, timeout=_PARTS_SECONDS)
            if not http.done():
                self._server.force_exit = True
                http.cancel()
                await asyncio.wait([http], timeout=_FORCED_SECONDS)
        self._sock.close()


async def open_store(config: ServerConfig) -> PostgresStore:
    """Wait for the database, bring its schema up to date and open it.

    Raises:
        Unavailable: the database did not answer within `database_seconds`.
        Conflict: its schema is newer than this program.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + config.database_seconds
    told = 0.0
    while True:
        try:
            applied = await asyncio.to_thread(migrate, config.dsn)
            if applied:
                log.info("schema brought up to date: %s", ", ".join(applied))
            layer = layer_from_environment(os.environ)
            store = PostgresStore(config.dsn, environment=layer, warm=True)
            await store.open()
            return store
        except Unavailable as error:
            left = until - loop.time()
            if left <= 0:
                raise
            if loop.time() - told >= 5.0:
                told = loop.time()
                log.warning("waiting for the database, %.0f s more: %s", left, error)
            await asyncio.sleep(0.25)


async def serve(config: ServerConfig) -> None:
    """Serve until SIGTERM or SIGINT. SIGHUP has the certificate read again, and ends nothing.

    Raises:
        ValidationError: the configuration cannot be served.
        Unavailable: the database did not answer in time.
    """
    check_config(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)  # nothing is served yet
    # First, so that a port in use is told before the database is touched.
    if config.listen_fd is None:
        sock = bind_socket(config.host, config.port)
    else:
        sock = adopt_socket(config.listen_fd)
    opening = asyncio.create_task(open_store(config))
    stopped = asyncio.create_task(stop.wait())
    try:
        if not await _finish(opening, stopped):
            return
        store = opening.result()
        try:
            await _serve_store(config, store, sock, stopped)
        finally:
            with contextlib.suppress(TimeoutError, HoldfastError):
                async with asyncio.timeout(_STORE_SECONDS):
                    await store.close()
    finally:
        stopped.cancel()
        sock.close()


async def _serve_store(
    config: ServerConfig, store: PostgresStore, sock: socket.socket, stopped: asyncio.Task[bool]
) -> None:
    if config.token_file is not None:
        await ensure_admin_token(store, Path(config.token_file))
    if config.join_token_file is not None:
        await ensure_join_token(store, Path(config.join_token_file))
    blobs = open_blobs(config.blobs, os.environ)
    running = RunningServer(
        store,
        sock,
        environment=os.environ,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
        blobs=blobs,
        advertise=config.advertise,
        dashboard_urls=config.dashboard_urls,
    )
    try:
        if not await _finish(running.controller.blob_place.join(), stopped):
            return
        await running.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, running.reload)
        # Objects of the start live to the end; to look through them cost 40 ms a time, in which no
        # request was answered.
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        log.info("checkpoints are kept in %s", blobs.place)
        log.info("serving %s", running.url)
        log.info("%s", _say_next(config, running.url))
        await _wait_for_end(running, stopped)
        log.info("stopping")
    finally:
        await running.stop()


def _say_next(config: ServerConfig, url: str) -> str:
    """Return the sentence that tells an operator how to go on."""
    if config.token_file is None:
        return "--token-file FILE would keep a token of the first admin in FILE"
    return (
        f"the first admin's token is in {config.token_file}: holdfast login {url} --token-file "
        f'{config.token_file}; then, for each host, holdfast agent --join {url} --token "$(holdfast '
        'token create --role join)"'
    )


async def _finish(
    work: asyncio.Task[PostgresStore] | Coroutine[Any, Any, None], stopped: asyncio.Task[bool]
) -> bool:
    """Do work of the start; return False where the signal to stop came before its end."""
    task = asyncio.ensure_future(work)
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return False
    task.result()
    return True


async def _wait_for_end(running: RunningServer, stopped: asyncio.Task[bool]) -> None:
    """Return at the signal to stop. Raises the error of a part that failed, or HoldfastError where
    a part ended without one."""
    failure = asyncio.create_task(running.wait_for_failure())
    try:
        await asyncio.wait((failure, stopped), return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            failure.result()
            raise HoldfastError("a part of the server ended by itself")
    finally:
        failure.cancel()
        await asyncio.gather(failure, return_exceptions=True)


def run_server(config: ServerConfig) -> int:
    """Set up the logs and serve in a new event loop; return the process's exit status."""
    set_up_logging(config.log_format)
    import uvloop

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config))
    except HoldfastError as error:
        log.error("%s", error.message)
        return EXIT_OTHER_BLOBS if error.code == OTHER_BLOBS else 1
    return 0
