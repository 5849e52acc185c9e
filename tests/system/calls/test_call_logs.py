"""The output of one call alone: a real controller, PostgreSQL, an agent and its executor."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.functions.connection import CONNECTION
from tests.system.cluster import Cluster
from tests.waits import stretch, wait_until

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # hosts import the app by the same name

import pages  # noqa: E402  found by the line above

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hosted(shared: Cluster) -> Iterator[Cluster]:
    shared.add_host("speaks", cpu_slots=1, apps=["pages"], app_path=str(HERE))
    CONNECTION.use(shared.client)
    yield shared
    CONNECTION.use(None)


def test_each_attempt_of_each_call_has_its_own_output(hosted: Cluster) -> None:
    results = pages.speak.map([""] * 50, range(50))
    assert list(results) == list(range(50))

    def read(n: int, **which: object) -> dict[str, bytes]:
        found = {"stdout": b"", "stderr": b""}
        for line in hosted.client.call_logs(results.id, n, **which):
            found[line.stream] += line.data
        return found

    assert read(7) == {"stdout": b"out of 7, attempt 1\n", "stderr": b"err of 7\n"}
    assert read(8) == {"stdout": b"out of 8, attempt 1\n", "stderr": b""}
    assert read(3)["stdout"] == b"out of 3, attempt 2\n"
    assert read(3, attempt=1)["stdout"] == b"out of 3, attempt 1\n"
    assert read(3, stream="stderr") == {"stdout": b"", "stderr": b"err of 3\n"}
    handle = pages.speak.submit("", 5)
    assert handle.result(timeout=stretch(60)) == 5
    assert handle.logs() == "out of 5, attempt 1\nerr of 5\n"
    assert pages.double.submit(2).logs() == ""


def test_a_running_call_is_followed_to_its_end(hosted: Cluster, tmp_path: Path) -> None:
    handle = pages.speak_and_stay.submit(str(tmp_path / "go"))
    heard: list[bytes] = []

    def follow() -> None:
        for line in hosted.client.call_logs(handle.set_id, handle.index, follow=True):
            heard.append(line.data)

    reader = threading.Thread(target=follow)
    reader.start()
    wait_until(lambda: b"here\n" in heard, 60)
    (tmp_path / "go").touch()
    reader.join(stretch(60))
    assert b"".join(heard) == b"here\ngone\n"


def test_the_command_prints_one_call(hosted: Cluster) -> None:
    handle = pages.speak.submit("", 9)
    assert handle.result(timeout=stretch(60)) == 9
    told = hosted.cli("calls", "logs", handle.id)
    assert (told.stdout, told.stderr) == (b"out of 9, attempt 1\n", b"err of 9\n")
    shown = hosted.cli("calls", "show", handle.id, "--logs")
    assert shown.stdout.endswith(b"\n9\n\nout of 9, attempt 1\n")


@pytest.mark.parametrize("victim", ["server", "agent"])
@pytest.mark.parametrize("again", [False, True])
def test_a_follower_loses_nothing_while_the_server_or_the_agent_is_killed(
    hosted: Cluster, tmp_path: Path, victim: str, again: bool
) -> None:
    """The call prints, and ends, and where `again` begins another attempt, while nothing hears it."""
    handle = pages.speak_on.submit(str(tmp_path), 2 if again else 1)
    heard: list[bytes] = []

    def follow() -> None:
        for line in hosted.client.call_logs(
            handle.set_id, handle.index, follow=True, stream="stdout"
        ):
            assert not line.gap
            heard.append(line.data)

    reader = threading.Thread(target=follow)
    reader.start()
    wait_until(lambda: b"attempt 1\n" in b"".join(heard), 60)
    if victim == "server":
        hosted.controller.kill()
    else:
        hosted.hosts["speaks"].kill_agent()
    (tmp_path / "go1").touch()
    wait_until((tmp_path / "said1").exists, 30)
    if victim == "server":
        hosted.controller.start()
    if again:
        wait_until((tmp_path / "said2").exists, 60)
    reader.join(stretch(90))
    assert not reader.is_alive()
    rounds = [
        b"attempt %d\n" % n + b"word\n" * 2000 + b"last\n" for n in ((1, 2) if again else (1,))
    ]
    assert b"".join(heard) == b"".join(rounds)
