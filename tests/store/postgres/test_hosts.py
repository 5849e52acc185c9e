"""What only the store on PostgreSQL does: hosts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.errors import NotFound
from holdfast.moves.values import JobFilter
from holdfast.wire.agent import HostFacts
from tests.store.conformance.shared import HASH
from tests.store.rig import START, Rig


async def test_a_dead_host_is_flagged_once_and_cleared(rig: Rig) -> None:
    await rig.host("h1")
    await rig.running()
    await rig.host("h2")  # idle: its silence costs no job anything
    long_ago = START - timedelta(days=1)
    assert await rig.store.hosts.sweep_dead_hosts(30, long_ago, now=rig.tick(30)) == []
    rig.tick(1)
    assert (
        await rig.store.hosts.sweep_dead_hosts(30, rig.now - timedelta(seconds=30), now=rig.now)
        == []
    )
    (flagged,) = await rig.store.hosts.sweep_dead_hosts(30, long_ago, now=rig.now)
    assert (flagged.id, flagged.flagged_dead_at) == ("h1", rig.now)
    assert await rig.store.hosts.sweep_dead_hosts(30, long_ago, now=rig.tick(1)) == []
    assert [h.id for h in await rig.store.hosts.list_hosts(dead=True)] == ["h1"]
    assert (await rig.store.read_gauges(now=rig.now)).dead_hosts == 1
    await rig.sync("h1")
    assert (await rig.store.hosts.get_host("h1")).flagged_dead_at is None
    assert [k for k in await rig.kinds() if k in ("host.dead", "host.recovered")] == [
        "host.dead",
        "host.recovered",
    ]


async def test_hosts_are_counted_by_state(rig: Rig) -> None:
    await rig.host("h1", gpus=2)
    await rig.running()
    await rig.host("h2", gpus=1)
    await rig.host("h3")
    await rig.store.hosts.move_host("h2", "quarantine", "smoke", now=rig.now)
    counts = await rig.store.views.count_hosts()
    told = {(one.state, one.dead): (one.hosts, one.gpus, one.unfit) for one in counts}
    assert told == {("active", False): (2, 2, False), ("quarantined", False): (1, 1, True)}
    gauges, slots = await rig.store.read_gauges(now=rig.now), [one.cpu_slots for one in counts]
    assert gauges.hosts == {"active": 2, "quarantined": 1}
    assert (gauges.total_gpus, gauges.total_cpu_slots) == (3, sum(slots))
    assert gauges.busy_cpu_slots == sum(one.busy_cpu_slots for one in counts) == 1


async def test_hosts_are_found(rig: Rig) -> None:
    with pytest.raises(NotFound):
        await rig.store.hosts.register_host(
            "h1", None, "inc-00001", HostFacts(name="a"), now=rig.now
        )
    await rig.host("h1", gpus=2)
    key = b"h1".ljust(32, b".")
    found = await rig.store.hosts.find_hosts_by_keys([key, HASH])
    assert {each: host.id for each, host in found.items()} == {key: "h1"}
    assert await rig.store.hosts.find_hosts_by_keys([]) == {}
    with pytest.raises(NotFound):
        await rig.store.hosts.get_host("nobody")
    (size,) = await rig.store.hosts.host_sizes()
    assert (size.name, len(size.gpus), size.cpu_slots) == ("name-h1", 2, 8)
    job_id, key = await rig.running()
    (live,) = await rig.store.leases.list_live_tasks("h1")
    assert (live.key, live.queue) == (key, "cpu")
    assert [j.id for j in await rig.store.jobs.list_jobs(JobFilter(host_ids=("h1",)))] == [job_id]


@pytest.mark.parametrize("way", ["revoke", "terminate"])
async def test_a_key_that_was_revoked_opens_nothing(rig: Rig, way: str) -> None:
    await rig.host("h1")
    key = b"h1".ljust(32, b".")
    assert await rig.store.hosts.find_hosts_by_keys([key])
    if way == "revoke":
        await rig.store.hosts.revoke_key("h1", "it was seen", now=rig.now)
    else:
        await rig.store.hosts.move_host("h1", "terminate", "", now=rig.now)
    assert await rig.store.hosts.find_hosts_by_keys([key]) == {}
    ended = "name-h1" if way == "terminate" else None
    assert await rig.store.hosts.find_ended_host(key) == ended
    assert (await rig.sync("h1")).status == "stale"
    told = [e.data["event"] for e in await rig.events() if e.kind == "host.moved"]
    assert told == [way]
    with pytest.raises(NotFound):
        await rig.store.hosts.revoke_key("nobody", "", now=rig.now)
    await rig.host("h1")
    assert (await rig.sync("h1")).status == "ok", "it joined again"


async def test_the_caches_of_a_host_are_those_that_its_present_agent_told(rig: Rig) -> None:
    """CACHE-2."""
    await rig.host()
    incarnation = rig.incarnations["h1"]
    await rig.store.hosts.note_caches("h1", incarnation, ["p/hf", "p/pip"])
    await rig.host()
    await rig.store.hosts.note_caches("h1", incarnation, ["p/old"])
    await rig.submit(caches=["hf"])
    snap = await rig.store.admission.read_admission(10, now=rig.now)
    assert [host.caches for host in snap.hosts] == [{"p/hf", "p/pip"}]
    assert [job.caches for job in snap.candidates] == [("hf",)]


async def test_the_controllers_that_serve_are_named_until_they_stop_or_fall_silent(
    rig: Rig,
) -> None:
    """LEARN-1"""
    hosts = rig.store.hosts
    for url in ("http://a", "http://b", "http://c"):
        await hosts.note_controller(url, now=rig.now)
    await hosts.note_controller("http://b", now=rig.tick(60))
    assert await hosts.list_controllers(now=rig.now) == ["http://b", "http://a", "http://c"]
    await hosts.forget_controller("http://a", now=rig.now)
    assert await hosts.list_controllers(now=rig.tick(550)) == ["http://b"], "the last is silent"
