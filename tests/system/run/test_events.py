"""The record of events, followed through a controller's restart: no gap and no duplicate."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from holdfast.client.sse import EventStreamReader
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow


class Listener:
    """A plain SSE client: it knows `Last-Event-ID` and nothing of Holdfast."""

    def __init__(self, cluster: Cluster) -> None:
        self._url = f"{cluster.controller.url}/v1/events"
        self._token = cluster.controller.token_file.read_text().strip()
        self.ids: list[str] = []
        self.connections = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            headers = {"Authorization": f"Bearer {self._token}", "Accept": "text/event-stream"}
            if self.ids:
                headers["Last-Event-ID"] = self.ids[-1]
            reader = EventStreamReader()
            try:
                with httpx.stream(
                    "GET", self._url, headers=headers, timeout=5, trust_env=False
                ) as answer:
                    assert answer.status_code == 200, answer.read()
                    self.connections += 1
                    for data in answer.iter_bytes():
                        self.ids += [event.id for event in reader.feed(data) if event.id]
                        if self._over.is_set():
                            return
            except httpx.HTTPError:
                time.sleep(0.05)

    def close(self) -> None:
        self._over.set()


def test_the_stream_of_events_resumes_without_gap_or_duplicate(cluster: Cluster) -> None:
    cluster.add_host("h", cpu_slots=4)
    listener = Listener(cluster)
    wait_until(lambda: listener.connections, what="the stream")
    jobs = []
    for turn in range(3):
        jobs += [cluster.submit("/bin/sh", "-c", "sleep 0.$((RANDOM % 5))") for _ in range(12)]
        time.sleep(0.3)
        if turn < 2:
            cluster.controller.kill()
            time.sleep(0.2)
            cluster.controller.start()
            wait_until(lambda turn=turn: listener.connections >= turn + 2, what="the stream again")
    for job in jobs:
        cluster.until(job, "succeeded")
    last = list(cluster.client.events())[-1].id
    wait_until(lambda: last in listener.ids, 15, what="the last event")
    listener.close()
    recorded = [event.id for event in cluster.client.events()]
    assert listener.connections >= 3
    assert listener.ids == recorded[recorded.index(listener.ids[0]) :]
    assert len(set(listener.ids)) == len(listener.ids)
    for job in jobs:
        kinds = [e.kind for e in cluster.client.events(job_id=job)]
        assert kinds.count("job.submitted") == kinds.count("job.succeeded") == 1, kinds
