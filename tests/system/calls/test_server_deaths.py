"""Servers and the database die in the middle of thousands of calls: each result is there once
(CALLSET-1…4)."""

import json
import os
import signal
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.core.calls.values import FunctionSpec
from holdfast.store.embedded.postgres import EmbeddedPostgres
from tests.system.cluster import Cluster
from tests.waits import stretch, wait_until

pytestmark = pytest.mark.slow
CALLS = 5000
APP = """
import time

import holdfast.functions


@holdfast.functions.task
def double(x: int) -> int:
    time.sleep(0.001)
    return 2 * x
"""
DOUBLE = FunctionSpec(function="mytasks:double")


def add_app_host(cluster: Cluster, name: str = "h", **options: object) -> None:
    folder = cluster.folder / "apps"
    folder.mkdir(exist_ok=True)
    (folder / "mytasks.py").write_text(APP)
    cluster.add_host(name, apps=["mytasks"], app_path=str(folder), **options)


def submit(client: Client) -> str:
    return client.submit_calls(DOUBLE, (f'{{"x": {n}}}' for n in range(CALLS))).id


class Collector:
    """Reads the results as they come, in a thread of its own."""

    def __init__(self, client: Client, set_id: str) -> None:
        self.values: list[int] = []
        self.attempts = 0
        self._client, self._set_id = client, set_id
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for result in self._client.each_result(self._set_id):
            assert result.index == len(self.values)
            self.values.append(int(result.value) if result.state == 1 else -1)
            self.attempts = max(self.attempts, result.attempts)

    def wait(self, count: int, seconds: float = 60.0) -> None:
        wait_until(lambda: len(self.values) >= count, seconds, what=f"{count} results")


def check_all(client: Client, set_id: str, collector: Collector) -> None:
    """Every result is there once, in the set's counts too, and a second reader reads the same."""
    assert collector.values == [2 * n for n in range(CALLS)]
    view = client.call_set(set_id)
    assert (view.state, view.succeeded, view.failed) == ("ended", CALLS, 0)
    assert [int(result.value) for result in client.each_result(set_id)] == collector.values
    ends = [e for e in client.events() if e.kind.startswith("calls.")]
    assert [e.kind for e in ends] == ["calls.succeeded"]


def test_a_killed_server_loses_and_doubles_no_result(cluster: Cluster) -> None:
    """Two servers: the host talks to one, the user to the other."""
    first, second = cluster.controller, cluster.add_controller()
    add_app_host(cluster)
    client = cluster.client_of(second)
    set_id = submit(client)
    collector = Collector(client, set_id)
    collector.wait(300)
    for _ in range(2):
        first.kill()
        seen = len(collector.values)
        time.sleep(0.5)  # the executor works on meanwhile, and keeps its ends
        first.start()
        collector.wait(min(CALLS, seen + 500))
    collector.wait(CALLS)
    check_all(client, set_id, collector)


def test_a_killed_database_loses_and_doubles_no_result(
    own_database: EmbeddedPostgres, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, own_database.dsn())
        stack.callback(cluster.close)
        cluster.add_controller()
        add_app_host(cluster)
        client = cluster.client
        set_id = submit(client)
        collector = Collector(client, set_id)
        collector.wait(300)
        os.kill(own_database.pid or 0, signal.SIGKILL)
        assert own_database.wait(stretch(10))
        time.sleep(1.0)
        own_database.start()
        collector.wait(CALLS, 90.0)
        check_all(client, set_id, collector)


def test_a_call_from_the_shell_and_what_the_commands_say_of_it(cluster: Cluster) -> None:
    add_app_host(cluster)
    done = cluster.cli("calls", "call", "mytasks:double", '{"x": 21}', "--timeout", "30")
    assert (done.returncode, done.stdout.strip()) == (0, b"42"), done.stderr
    (listed,) = json.loads(cluster.cli("calls", "--json").stdout)
    assert (listed["spec"]["function"], listed["succeeded"]) == ("mytasks:double", 1)
    assert "mytasks" in cluster.cli("calls").stdout.decode()
    shown = cluster.cli("calls", "show", "@last.0").stdout.decode()
    assert "succeeded" in shown
    assert b"no jobs" in cluster.cli("jobs").stdout
    assert b"executor of mytasks" in cluster.cli("jobs", "--executors", "--wide").stdout
    none = cluster.cli("calls", "call", "nowhere:f", "--no-wait").stdout.decode().strip()
    why = cluster.cli("calls", "why", none).stdout.decode()
    assert "lists app nowhere" in why
    assert "holdfast agent --app nowhere" in why
