"""Admission to the socket: CURVE keys judged by ZAP, and counts of refused connections."""

import errno
import logging
import resource
import struct
from collections import Counter

import zmq
from zmq.utils import z85

from holdfast.supervisor.line.keys import RunKeys

logger = logging.getLogger("holdfast.supervisor")

_ZAP_ENDPOINT = "inproc://zeromq.zap.01"
_WATCHED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_ACCEPT_FAILED
)
_EVENTS_PER_TURN = 1000
# An event and its value, as zmq_socket_monitor(3) defines them. ZeroMQ's own reader
# would import asyncio, which is a third of a bus's start.
_EVENT = struct.Struct("=Hi")


class Gate:
    """The handler of handshakes (ZAP) and the monitor of the bus's socket, both polled by the bus's
    thread."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], router: zmq.Socket[bytes], keys: RunKeys
    ) -> None:
        self.refused: Counter[str] = Counter()
        self.disconnects = 0
        self.zap: zmq.Socket[bytes] | None = None
        self._allowed = b""
        if keys.server_secret:
            self._allowed = z85.decode(keys.client_public)
            self.zap = context.socket(zmq.REP)
            self.zap.linger = 0
            self.zap.bind(_ZAP_ENDPOINT)
            router.curve_server = True
            router.curve_secretkey = keys.server_secret.encode()
            router.curve_publickey = keys.server_public.encode()
            router.setsockopt(zmq.ZAP_DOMAIN, b"holdfast")
        self.monitor = router.get_monitor_socket(_WATCHED)

    def answer_zap(self) -> None:
        """Accept or refuse every waiting handshake."""
        assert self.zap is not None
        while True:
            try:
                request = self.zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # A request: version, number, domain, address, identity, mechanism, credentials.
            known = len(request) > 6 and request[5] == b"CURVE" and request[6] == self._allowed
            if not known:
                self.refused["unknown key"] += 1
            answer = [b"200", b"OK", b"manager"] if known else [b"400", b"unknown key", b""]
            self.zap.send_multipart([*request[:2], *answer, b""])

    def read_monitor(self) -> None:
        """Count failed handshakes, closed connections and connections that were not accepted."""
        for _ in range(_EVENTS_PER_TURN):
            try:
                event, value = _EVENT.unpack(self.monitor.recv_multipart(zmq.NOBLOCK)[0])
            except zmq.Again:
                return
            if event == zmq.EVENT_DISCONNECTED:
                self.disconnects += 1
            elif event == zmq.EVENT_ACCEPT_FAILED:
                self._count_unaccepted(value)
            elif event != zmq.EVENT_HANDSHAKE_FAILED_AUTH:  # counted in `answer_zap`
                self.refused["handshake"] += 1

    def _count_unaccepted(self, error: int) -> None:
        why = "no descriptor" if error in (errno.EMFILE, errno.ENFILE) else "accept"
        if why == "no descriptor" and not self.refused[why]:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            logger.error(
                "managers cannot connect: each takes a descriptor, and all %d of this process "
                "(ulimit -n) are in use",
                limit,
            )
        self.refused[why] += 1

    def close(self, router: zmq.Socket[bytes]) -> None:
        """Close both sockets."""
        router.disable_monitor()
        self.monitor.close(linger=0)
        if self.zap is not None:
            self.zap.close()
