"""`GET /metrics` of a policy script: Prometheus' text over plain HTTP, in a thread of its own."""

import http.server
import logging
import socket
import threading
from collections.abc import Callable

from holdfast.errors import Unavailable

logger = logging.getLogger("holdfast.supervisor")

_CLIENT_SECONDS = 10.0  # the longest that a silent client holds a thread
_TRIES = 3


class MetricsServer:
    """Serves the text that `render` returns, until `close`. The port is bound when the server is
    made.

    Raises:
        Unavailable: the port cannot be bound.
    """

    def __init__(self, address: str, port: int, render: Callable[[], str]) -> None:
        try:
            self._server = _Listener(address, port, render)
        except OSError as error:
            raise Unavailable(
                f"metrics cannot be served on {address} port {port}: {error.strerror or error}"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="holdfast-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving metrics."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_CLIENT_SECONDS)


class _Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str, port: int, render: Callable[[], str]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._render = render
        super().__init__((address, port), _MetricsRequest)

    def server_bind(self) -> None:
        """Bind without looking up this machine's name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def render(self) -> str:
        """Return the text of `render`, called again where a counter got its first entry
        meanwhile."""
        for _ in range(_TRIES):
            try:
                return self._render()
            except RuntimeError:
                continue
        return self._render()


class _MetricsRequest(http.server.BaseHTTPRequestHandler):
    timeout = _CLIENT_SECONDS
    server: _Listener
    server_version = "holdfast"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request of a scraper of metrics."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "only /metrics is here")
            return
        body = self.server.render().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log scrapes at debug level only."""
        logger.debug("metrics: " + format, *args)
