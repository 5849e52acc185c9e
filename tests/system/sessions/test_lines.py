"""What happens to bytes on their way: changed by a relay, cut off, left waiting."""

from __future__ import annotations

import collections
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.client import Client
from holdfast.client.sessions.session import TaskSession
from holdfast.errors import Unavailable
from tests.system.cluster import Cluster
from tests.system.proxy import Proxy
from tests.waits import wait_until

pytestmark = pytest.mark.slow

DATA = random.Random(1).randbytes(6 << 20)
PORT = 23109
# Sends back what it reads, until its reader has ended.
SERVER = f"""
import socket, threading
server = socket.create_server(("127.0.0.1", {PORT}))
print("listens", flush=True)
def serve(end):
    while data := end.recv(65536):
        end.sendall(data)
    end.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


@pytest.fixture(scope="module")
def job(shared: Cluster) -> str:
    shared.add_host("inside", cpu_slots=8)
    job_id = shared.submit("python3", "-c", SERVER)
    wait_until(lambda: b"listens" in shared.output(job_id), 30)
    return job_id


@pytest.fixture
def proxy(shared: Cluster) -> Iterator[Proxy]:
    with Proxy(shared.controller.port) as found:
        yield found


@pytest.fixture
def client(shared: Cluster, proxy: Proxy) -> Iterator[Client]:
    """A client whose bytes go through the proxy."""
    token = shared.controller.token_file.read_text().strip()
    with Client(f"http://127.0.0.1:{proxy.port}", token) as found:
        yield found


class Damage:
    """Changes one byte of as many chunks as are wanted, and leaves those between as they are."""

    def __init__(self, proxy: Proxy, times: int = 1, every: int = 20) -> None:
        self.times, self._every, self._seen = times, every, 0
        proxy.rewrite = self

    def __call__(self, data: bytes) -> bytes:
        if len(data) < 5000 or not self.times:
            return data
        self._seen += 1
        if self._seen % self._every:
            return data
        self.times -= 1
        return data[:4000] + bytes((data[4000] ^ 1,)) + data[4001:]


def give(session: TaskSession) -> threading.Thread:
    """Write all the data to a session, from another thread."""

    def write() -> None:
        session.write(DATA)
        session.close_stdin()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    return thread


def test_a_command_gets_and_gives_no_byte_that_was_changed_on_its_way(
    client: Client, job: str, proxy: Proxy
) -> None:
    """SESSION-2, in both directions: its link is made anew, from the last good frame."""
    lost: list[str] = []
    with client.open_session(job, ["cat"], on_lost=lost.append) as session:
        damage = Damage(proxy, times=6)
        give(session)
        found = b"".join(piece.data for piece in session)
    assert found == DATA
    assert damage.times == 0
    assert 1 <= len([word for word in lost if word]) <= 6
    assert {word for word in lost if word} == {"bytes were changed on their way"}


def test_a_line_that_changes_bytes_each_time_ends_with_a_sentence(
    client: Client, job: str, proxy: Proxy
) -> None:
    with client.open_session(job, ["cat", "/dev/zero"]) as session:
        Damage(proxy, times=1000, every=1)
        words = "changed on their way each time; look at the proxies"
        with pytest.raises(Unavailable, match=words):
            collections.deque(session, maxlen=0)


@pytest.mark.parametrize("way", ["up", "down"])
def test_a_forwarded_connection_whose_bytes_are_changed_is_reset_and_its_user_told(
    client: Client, job: str, proxy: Proxy, way: str
) -> None:
    """SESSION-2: no byte of it is sent twice, so it cannot go on."""
    told: list[str] = []
    with (
        client.forward_port(job, PORT, local_port=0, on_notice=told.append) as forward,
        socket.create_connection(("127.0.0.1", forward.port), 30) as end,
    ):
        end.sendall(b"x")
        assert end.recv(1) == b"x"
        Damage(proxy, every=3 if way == "up" else 40)
        resets: list[OSError] = []
        sender = threading.Thread(target=send_all, args=(end, resets), daemon=True)
        sender.start()
        found: list[bytes] = []
        try:
            found.extend(iter(lambda: end.recv(1 << 16), b""))
        except ConnectionResetError as error:
            resets.append(error)
        sender.join(30)
    # The kernel tells of a reset once: to the call that asks first, be it a write or a read.
    assert any(isinstance(error, ConnectionResetError) for error in resets)
    assert DATA.startswith(b"".join(found))
    wait_until(lambda: told)
    assert told == [
        f"a connection to port {PORT} was ended, because bytes were changed on their way; "
        "it is to be made anew"
    ]


def send_all(end: socket.socket, errors: list[OSError]) -> None:
    try:
        end.sendall(DATA)
    except OSError as error:
        errors.append(error)


def test_what_was_read_ahead_of_a_broken_line_is_not_given_twice(
    client: Client, job: str, proxy: Proxy
) -> None:
    """SESSION-1: a caller that only writes has its output kept until it reads."""
    lost: list[str] = []
    with client.open_session(job, ["cat"], on_lost=lost.append) as session:
        for at in range(0, len(DATA), 1 << 20):
            session.write(DATA[at : at + (1 << 20)])
            if at == 3 << 20:
                proxy.cut()
        session.close_stdin()
        found = b"".join(piece.data for piece in session)
    assert found == DATA
    assert len([word for word in lost if word]) == 1


def test_a_connection_whose_line_broke_is_reset_at_both_its_ends(
    shared: Cluster, client: Client, job: str, proxy: Proxy
) -> None:
    """Its reader does not take a part for the whole."""
    with (
        client.forward_port(job, PORT, local_port=0) as forward,
        socket.create_connection(("127.0.0.1", forward.port), 30) as end,
    ):
        end.sendall(b"x")
        assert end.recv(1) == b"x"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    with client.open_session(job, ["true"]) as session:
        assert session.wait() == 0
    assert shared.client.job(job).state == "running"
