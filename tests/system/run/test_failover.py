"""Two controllers over one database, named to a host and to a client: one of them dies, and both
go on with the other (CALL-3)."""

from __future__ import annotations

import pytest

from holdfast.client import Client
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow


def test_a_host_that_was_told_of_one_controller_goes_on_with_another(cluster: Cluster) -> None:
    """LEARN-1: also where it starts anew once the one that it joined is gone."""
    first, second = cluster.controller, cluster.add_controller()
    host = cluster.add_host("h")
    known = host.state / "controllers.json"
    wait_until(
        lambda: known.exists() and second.url in known.read_text(), 60, what="it to be learned"
    )
    client = cluster.client_of(second)
    first.kill()
    before = client.submit(argv=["true"]).id
    wait_until(lambda: client.job(before).state == "succeeded", 60, what="a job of the other")
    host.kill_guardian()
    host.start()
    after = client.submit(argv=["true"]).id
    wait_until(lambda: client.job(after).state == "succeeded", 60, what="a job after a restart")


def test_a_host_and_a_client_go_on_with_the_controller_that_is_left(cluster: Cluster) -> None:
    """The leader dies. The task that runs meanwhile notices nothing, its output is followed over the
    death, and the next job runs as soon as the other one leads."""
    first, second = cluster.controller, cluster.add_controller()
    urls = f"{first.url},{second.url}"
    cluster.add_host("h", url=urls)
    go = cluster.folder / "go"
    script = f"echo begun; while [ ! -e {go} ]; do sleep 0.05; done; echo done"
    token = first.token_file.read_text().strip()
    with Client(urls, token, retry_seconds=30.0) as client:
        job = client.submit(argv=["sh", "-c", script]).id
        output = client.logs(job, follow=True)
        assert next(output) == b"begun\n"
        first.kill()
        small = client.submit(argv=["/bin/true"]).id
        wait_until(lambda: client.job(small).state == "succeeded", 30, what="the next job to end")
        assert client.job(job).state == "running"
        go.touch()
        assert b"".join(output) == b"done\n"
        assert client.wait(job, 30).state == "succeeded"
        assert len(client.attempts(job)) == 1
