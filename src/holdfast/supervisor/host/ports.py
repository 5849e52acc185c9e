"""Finds ports of this host that are free now."""

import random
import socket

from holdfast.wire.bus.messages import FindPort, PortFound

_TRIES = 64


def answer_port(order: FindPort) -> PortFound:
    """Choose a free port at random, because other managers of this machine may choose at the same
    moment, and no port is held until the rank binds it."""
    ports = range(order.first, order.last + 1)
    for port in random.sample(ports, min(_TRIES, len(ports))):
        if is_free(port):
            return PortFound(order.request, port)
    return PortFound(order.request, 0)


def is_free(port: int) -> bool:
    """Return whether no program of this host has bound a port, at any of its addresses."""
    both = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if both else socket.AF_INET) as bound:
        try:
            if both:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(("", port))
        except OSError:
            return False
    return True
