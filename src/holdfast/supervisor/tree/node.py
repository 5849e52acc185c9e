"""One node of a tree, on its host: `python -m holdfast.supervisor.tree.node`.

It runs the function, receives the reports of its children, merges all of them, and sends one report
to its parent. Connections must show the tree's key, and bring bytes of `line.values` only.

- A node reports the results that it has when its time is over, even if its own function or a
  child has not ended.
"""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from typing import Any

from holdfast.errors import ValidationError
from holdfast.supervisor.line.values import decode_value, encode_value
from holdfast.supervisor.member.messages import get_message_queue
from holdfast.supervisor.tree.functions import add_folders, load_function
from holdfast.supervisor.tree.messages import Meeting, NodeOrder, Partial, plain, read_message

_BACKLOG = 128


class Node:
    """The results that this node has received so far, its own included."""

    def __init__(self, order: NodeOrder) -> None:
        self._order = order
        self._reduce: Callable[[Any, Any], Any] | None = None
        self._loaded = threading.Event()
        self._heard = Partial()
        self._waits_for = 1 + order.children
        self._changed = threading.Condition()

    def work(self) -> None:
        """Run the function, and add its result or its error."""
        number = self._order.number
        try:
            try:
                add_folders(self._order.folders)
                self._reduce = load_function(self._order.reduce)
                function = load_function(self._order.map)
            finally:
                self._loaded.set()
            value = function(self._order.input)
            encode_value(value)
            self._add(Partial(numbers=[number], value=value))
        except BaseException as error:
            traceback.print_exc()
            self._add(Partial(failed={number: f"{type(error).__name__}: {error}"}))

    def take_children(self, listener: Listener) -> None:
        """Receive and add the reports of this node's children. A connection without the key is
        refused."""
        self._loaded.wait()
        left = self._order.children
        while left:
            with contextlib.suppress(Exception), listener.accept() as child:
                partial = read_message(decode_value(child.recv_bytes()), Partial)
                left -= 1
                self._add(partial)

    def _add(self, other: Partial) -> None:
        with self._changed:
            heard = self._heard
            try:
                if heard.numbers and other.numbers:
                    if self._reduce is None:
                        raise ValidationError("the function that merges cannot be loaded there")
                    heard.value = self._reduce(heard.value, other.value)
                elif other.numbers:
                    heard.value = other.value
                heard.numbers = heard.numbers + other.numbers
            except Exception as error:
                traceback.print_exc()
                reason = f"its result could not be merged: {type(error).__name__}: {error}"
                heard.failed = heard.failed | dict.fromkeys(other.numbers, reason)
            heard.failed = heard.failed | other.failed
            self._waits_for -= 1
            self._changed.notify_all()

    def wait(self) -> Partial:
        """Wait for all results, or for the end of the time; return those that came."""
        order = self._order
        began = time.monotonic()
        own_until, all_until = began + order.seconds, began + order.merge_seconds

        def is_over() -> bool:
            now, late = time.monotonic(), order.number not in self._known()
            return (
                not self._waits_for
                or now >= all_until
                or (self._waits_for == 1 and late and now >= own_until)
            )

        with self._changed:
            while not is_over():
                now = time.monotonic()
                next_at = own_until if now < own_until else all_until
                self._changed.wait(max(0.001, next_at - now))
            heard = self._heard
            failed = dict(heard.failed)
            if order.number not in self._known():
                failed[order.number] = f"no answer in {order.seconds:g} s"
            return Partial(numbers=list(heard.numbers), value=heard.value, failed=failed)

    def _known(self) -> set[int]:
        return {*self._heard.numbers, *self._heard.failed}


def listen(address: str, key: bytes) -> Listener:
    """Listen at the address where the other hosts reach this one. An advertised address need not be
    one of the machine's own; then the node listens on every address, for connections that have the
    key."""
    try:
        return Listener((address, 0), backlog=_BACKLOG, authkey=key)
    except OSError:
        return Listener(("0.0.0.0", 0), backlog=_BACKLOG, authkey=key)


def main() -> None:
    """Run this host's node of the tree."""
    queue = get_message_queue()
    meeting = read_message(queue.recv(), Meeting)
    key = bytes.fromhex(meeting.key)
    with listen(meeting.address, key) as listener:
        queue.send({"port": listener.address[1]})
        order = read_message(queue.recv(), NodeOrder)
        node = Node(order)
        threading.Thread(target=node.work, daemon=True).start()
        threading.Thread(target=node.take_children, args=(listener,), daemon=True).start()
        report = plain(node.wait())
        if order.parent is None:
            queue.send(report)
            queue.close()
        else:
            with Client(order.parent, authkey=key) as parent:
                parent.send_bytes(encode_value(report))
    sys.stdout.flush()
    os._exit(0)  # a function that does not return must not hold the process


if __name__ == "__main__":
    main()
