"""Ask the kernel about a connection, and tell it how to end one."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any

_ACKED = slice(120, 128)  # tcpi_bytes_acked of Linux's struct tcp_info


def count_acked(wire: Any) -> int:
    """Return how many bytes the other end's kernel has acknowledged; 0 where no kernel counts."""
    with contextlib.suppress(OSError, AttributeError):
        told = wire.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.stop)
        return int.from_bytes(told[_ACKED], "little")
    return 0


def reset_on_close(wire: Any) -> None:
    """Have the close of a connection reset it, so that its reader takes a part for no whole."""
    with contextlib.suppress(OSError, AttributeError):
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
