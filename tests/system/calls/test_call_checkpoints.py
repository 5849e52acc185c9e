"""A call that is tried again on another host goes on from its checkpoint."""

import os
import signal
import sys
from pathlib import Path

import pytest

from holdfast.functions.connection import CONNECTION
from tests.system.cluster import Cluster
from tests.waits import stretch, wait_until

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # hosts import the app by the same name

import pages  # noqa: E402  found by the line above

pytestmark = pytest.mark.slow


def test_a_checkpoint_follows_its_call_to_another_host(cluster: Cluster, tmp_path: Path) -> None:
    one = cluster.add_host("one", cpu_slots=1, apps=["pages"], app_path=str(HERE))
    CONNECTION.use(cluster.client)
    try:
        saved = tmp_path / "saved"
        handle = pages.go_on.submit(str(saved))
        wait_until(saved.exists, 60)
        cluster.add_host("two", cpu_slots=1, apps=["pages"], app_path=str(HERE))
        cluster.client.act_on_host("one", "drain")  # what runs there may go on
        [executor] = one.executor_pids()
        os.kill(executor, signal.SIGKILL)
        assert handle.result(timeout=stretch(60)) == ["one", "two"]
    finally:
        CONNECTION.use(None)
