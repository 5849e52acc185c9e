"""The rule by which a host serves a queue is written in Python and in SQL, and both say the same."""

from __future__ import annotations

from itertools import chain, combinations

from holdfast.core.placement.eligible import serves
from tests.store.rig import Rig

QUEUES = ("a", "b", "c")
SETS = [list(each) for n in range(len(QUEUES) + 1) for each in combinations(QUEUES, n)]


async def find_takable(rig: Rig, hosts: list[str]) -> set[str]:
    """Return the queues whose jobs the store reads for a take of these hosts."""
    asked = {"revision": 0, "seconds": 5.0, "now": rig.now, "ids": hosts, "limit": 100}
    (row,) = await rig.store.session.rows("read_takes", **asked)
    found = row["queues"] or []
    return {*found} if len(found) > 1 or not row["ids"] else {*found[:1]}


async def test_a_take_reads_the_jobs_of_the_queues_that_its_hosts_serve(rig: Rig) -> None:
    """Every set of queues of a host, and every pair of such hosts; a paused queue gives no job."""
    for name in (*QUEUES, "paused"):
        await rig.set_queue(name)
        await rig.submit(queue=name)
    await rig.store.settings.pause_queue("paused", "a test", hard=False, now=rig.now)
    hosts = {f"h{n}": queues for n, queues in enumerate(SETS)}
    for name, queues in hosts.items():
        await rig.host(name, queues=queues)
    for some in chain(combinations(hosts, 1), combinations(hosts, 2)):
        wanted = {q for q in QUEUES if any(serves(hosts[name], q) for name in some)}
        assert await find_takable(rig, [*some]) == wanted, some


async def test_a_round_of_admission_sees_the_queues_that_an_active_host_serves(rig: Rig) -> None:
    for name in QUEUES:
        await rig.set_queue(name)
    there: list[list[str]] = []
    for n, queues in enumerate([each for each in SETS if each] + [[]]):
        asked = {"limits": False, "whole": True, "now": rig.now}
        (row,) = await rig.store.session.rows("begin_admission", **asked)
        told = {each["name"]: each["served"] for each in row["queues"] if each["name"] in QUEUES}
        assert told == {q: any(serves(each, q) for each in there) for q in QUEUES}, there
        await rig.host(f"h{n}", queues=queues)
        there.append(queues)
