"""Open the listening socket of `holdfast up`, once; every controller that it starts inherits it."""

import errno
import os
import socket
from collections.abc import Callable

from holdfast.errors import Conflict, ValidationError


def open_listener(
    host: str, port: int | None, default: int, say: Callable[[str], None]
) -> socket.socket:
    """Listen on `port`. If it is None, listen on `default`; if that is taken, on any free port, and
    report that by `say`.

    Raises:
        Conflict: `port` was asked for and is taken; the message names the process if it can.
        ValidationError: no socket can listen on it.
    """
    wanted = default if port is None else port
    try:
        return _listen(host, wanted)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ValidationError(
                f"cannot listen on {host}:{wanted}: {error.strerror}", field="port"
            ) from error
        holder = _name_holder(wanted)
        if port is not None:
            raise Conflict(
                f"port {port} is taken{holder}. Choose another with --port, or --port 0 for any.",
                code="port_taken",
            ) from error
    found = _listen(host, 0)
    say(f"port {default} is taken{holder}; using {found.getsockname()[1]} (choose with --port)")
    return found


def _listen(host: str, port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(2048)
    except BaseException:
        made.close()
        raise
    return made


def _name_holder(port: int) -> str:
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            if connection.status == psutil.CONN_LISTEN and address and address.port == port:
                if connection.pid in (None, os.getpid()):
                    return ""
                name = psutil.Process(connection.pid).name()
                return f" by {name} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""
