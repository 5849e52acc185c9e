"""Webhooks of real controllers, real jobs and a real receiver: every event arrives, in order,
also when a part is killed."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import webhooks
from holdfast.errors import ValidationError
from tests.store.pg_fixture import PgServer
from tests.system.cluster import Cluster
from tests.system.conftest import make_cluster
from tests.unit.controller.webhooks.receiver import (
    OK,
    SECRET,
    Receiver,
    Request,
    hang,
    receive,
    status,
)
from tests.waits import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def hooked(tmp_path: Path, pg_server: PgServer) -> Iterator[Cluster]:
    """A controller that may call loopback."""
    with ExitStack() as stack:
        yield make_cluster(stack, tmp_path, pg_server, webhook_allow_private="on")


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = receive()

    def run(work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, loop).result(20)

    try:
        receiver = run(context.__aenter__())
        yield receiver
        run(context.__aexit__(None, None, None))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def until_delivered(cluster: Cluster, hook_id: str, seconds: float = 60) -> None:
    """Until every event of a job that there is has been taken."""

    def look() -> bool:
        hook = cluster.client.webhook(hook_id)
        assert hook.dead == 0
        events = [e.id for e in cluster.client.events() if e.kind.startswith("job.")]
        taken = {d.event_id for d in cluster.client.deliveries(hook_id, states=["delivered"])}
        return hook.pending == 0 and taken >= set(events)

    wait_until(look, seconds, what="every delivery")


def accepted(receiver: Receiver, job_id: str, refused: set[int]) -> list[str]:
    """The ids of a job's events in the order they were first taken."""
    found = [
        r.payload["event"]["id"]
        for number, r in enumerate(receiver.requests)
        if r.payload["event"]["job_id"] == job_id and number not in refused
    ]
    return list(dict.fromkeys(found))


def test_a_leader_killed_between_send_and_record_sends_again(hooked: Cluster) -> None:
    """HOOK-2: the receiver has the call, the answer is on its way, and the leader dies."""
    with receiving() as receiver:
        receiver.answer = lambda request, number: hang
        made = hooked.client.create_webhook(receiver.url, events=["job.*"], secret=SECRET)
        job_id = hooked.submit("true")
        hooked.client.cancel(job_id)
        wait_until(lambda: receiver.requests, 20, what="the first call")
        hooked.controller.kill()
        assert [r.kind for r in receiver.requests] == ["job.submitted"]
        receiver.answer = lambda request, number: OK
        hooked.controller.start()
        until_delivered(hooked, made.id)
        first, again, *rest = receiver.requests
        assert (again.delivery, again.body) == (first.delivery, first.body)
        assert [r.kind for r in rest] == ["job.cancelled"]
        record = hooked.client.delivery(made.id, first.delivery)
        assert (record.tries, record.status, record.state) == (1, 200, "delivered")
        assert record.body.encode() == first.body


@pytest.mark.longest
def test_nothing_is_missed_and_each_job_is_in_order_over_kills_and_failures(
    hooked: Cluster,
) -> None:
    hooked.add_controller()
    hooked.add_host("h", cpu_slots=4)
    chance, refused = random.Random(7), set[int]()

    def answer(request: Request, number: int) -> bytes:
        if chance.random() < 0.15:
            refused.add(number)
            return chance.choice([status(500), b"", b"HTTP/1.1 2"])
        return OK

    with receiving() as receiver:
        receiver.answer = answer
        made = hooked.client.create_webhook(receiver.url, events=["job.*"], secret=SECRET)
        jobs: list[str] = []
        wanted: list[int] = []
        for turn in range(3):
            jobs += [
                hooked.submit("/bin/sh", "-c", f"exit {n % 2}", labels={"turn": str(turn)})
                for n in range(4)
            ]
            wanted.append(len(receiver.requests) + 4)
            wait_until(lambda: len(receiver.requests) >= wanted[-1], 30, what="calls")
            if turn < 2:
                leader = next(c for c in hooked.controllers if c.messages("this server leads"))
                leader.kill(signal.SIGKILL)
                leader.log_path.unlink()
                leader.start()
        for number, job_id in enumerate(jobs):
            hooked.until(job_id, "failed" if number % 2 else "succeeded", seconds=60)
        until_delivered(hooked, made.id)
        for job_id in jobs:
            assert accepted(receiver, job_id, refused) == [
                e.id for e in hooked.client.events(job_id=job_id)
            ]
        last = [r.payload for r in receiver.requests if r.payload["event"]["job_id"] == jobs[1]][-1]
        assert (last["job"]["state"], last["job"]["labels"]) == ("failed", {"turn": "0"})
        assert last["event"]["message"] == last["job"]["reason"]


def test_a_controller_does_not_call_loopback_unless_it_may(cluster: Cluster) -> None:
    with receiving() as trap:
        for url in (
            trap.url,
            f"https://localhost:{trap.port}/",
            f"https://[::ffff:127.0.0.1]:{trap.port}/",
            f"https://2130706433:{trap.port}/",
        ):
            with pytest.raises(ValidationError):
                cluster.client.create_webhook(url)
        cluster.client.set_config({"webhook_allow_private": True})
        trap.secret = None
        made = cluster.client.create_webhook(trap.url)
        assert cluster.client.test_webhook(made.id).delivered
        assert (
            webhooks.verify(made.secret, trap.requests[0].headers, trap.requests[0].body).event[
                "kind"
            ]
            == "webhook.test"
        )
        cluster.client.set_config({}, ["webhook_allow_private"])
        wait_until(
            lambda: not cluster.client.test_webhook(made.id).delivered,
            10,
            what="the setting to be in force",
        )
        before = trap.connections
        refused = cluster.client.test_webhook(made.id)
        assert refused.error.startswith("refused: ")
        assert trap.connections == before
