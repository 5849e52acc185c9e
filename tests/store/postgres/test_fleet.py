"""What every store must do for `store.fleet`."""

from __future__ import annotations

import hashlib
from datetime import timedelta

import msgspec
import pytest

from holdfast.core.causes import Cause
from holdfast.core.fleet.actions import CycleActions, CycleSummary
from holdfast.core.fleet.faults import HostFault
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.snapshot import FleetHost
from holdfast.core.gpus import Gpu
from holdfast.core.host_checks import CheckVerdict
from holdfast.core.host_faults import Hindrance
from holdfast.core.placement.types import QuotaLeft
from holdfast.core.records import HostCheckRecord
from holdfast.core.states import HostState, InstanceEvent, InstanceState, JobState, OutputsEvent
from holdfast.errors import Conflict, Forbidden, NotFound
from holdfast.store.postgres.bundles.outputs import NewOutputs
from holdfast.store.postgres.fleet.instances import SEEN_SECONDS
from holdfast.wire.agent import HostFacts
from tests.store.conformance.shared import HASH
from tests.store.rig import OK, START, Rig

A100 = Offer(name="a100", gpus=1, gpu_memory_bytes=80 << 30, cpu_slots=4, usd_per_hour=2.0)
POOL = PoolSpec(name="p", provider="local", offers=(A100,), max=4, queues=("cpu", "gpu"))


def facts(**changed: object) -> HostFacts:
    given: dict[str, object] = {
        "name": "whatever",
        "pool": "another",
        "cpu_slots": 4,
        "memory_bytes": 1 << 34,
        "gpus": [Gpu(index=0, memory_bytes=80 << 30)],
        "queues": ["cpu", "gpu"],
    }
    return HostFacts(**(given | changed))  # type: ignore[arg-type]  # fields of HostFacts


async def intend(rig: Rig, host_id: str = "host-aaaaaaaa") -> str:
    await rig.store.fleet.put_pool(POOL, now=rig.now)
    assert await rig.store.fleet.intend("p", A100, [host_id], "2 jobs wait", now=rig.now) == [
        host_id
    ]
    return host_id


def token_of(host_id: str) -> bytes:
    return hashlib.sha256(host_id.encode()).digest()


async def ask(rig: Rig, host_id: str) -> None:
    found = await rig.store.fleet.ask(
        host_id, f"tok-{host_id}", token_of(host_id), 3600.0, now=rig.now
    )
    assert found is not None
    assert found.state is InstanceState.ASKED


async def made(rig: Rig, host_id: str = "host-aaaaaaaa", ref: str = "m-1") -> str:
    await intend(rig, host_id)
    await ask(rig, host_id)
    assert await rig.store.fleet.note_made(host_id, ref, now=rig.now) is not None
    return host_id


async def joined(rig: Rig, host_id: str = "host-aaaaaaaa", **changed: object) -> str:
    await made(rig, host_id)
    rig.incarnations[host_id] = "inc-00001"
    await rig.store.hosts.register_host(
        host_id, host_id.encode().ljust(32, b"."), "inc-00001", facts(**changed), now=rig.now
    )
    return host_id


async def active(rig: Rig, host_id: str = "host-aaaaaaaa") -> str:
    await joined(rig, host_id)
    assert await rig.store.fleet.promote_host(host_id, "it shows what was rented", now=rig.now) == 0
    return host_id


async def shown(rig: Rig) -> list[FleetHost]:
    snapshot = await rig.store.fleet.read_snapshot(now=rig.now)
    return [host for pool in snapshot.pools for host in pool.hosts]


async def state_of(rig: Rig, host_id: str) -> tuple[HostState, InstanceState]:
    found = (await rig.store.fleet.find_instances([host_id]))[host_id]
    return found.host_state, found.state


# ---- pools


async def test_a_pool_is_made_changed_paused_and_forgotten(rig: Rig) -> None:
    fleet = rig.store.fleet
    with pytest.raises(NotFound, match="pools list"):
        await fleet.get_pool("p")
    assert (await fleet.put_pool(POOL, now=rig.now)).spec == POOL
    await fleet.put_pool(POOL, now=rig.now)  # the same again is no change
    larger = PoolSpec(name="p", provider="local", offers=(A100,), max=9)
    assert (await fleet.put_pool(larger, now=rig.now)).spec.max == 9
    paused = await fleet.pause_pool("p", "a bill", now=rig.now)
    assert (paused.paused_at, paused.paused_reason) == (START, "a bill")
    assert (await fleet.read_snapshot(now=rig.now)).pools[0].paused == "a bill"
    assert await fleet.intend("p", A100, ["h1"], "", now=rig.now) == [], "a paused pool spawns none"
    assert (await fleet.resume_pool("p", now=rig.now)).paused_at is None
    await fleet.pause_pool("p", "a second bill", now=rig.now)
    assert (await fleet.delete_pool("p", now=rig.now)).deleted_at == START
    (view,) = (await fleet.read_snapshot(now=rig.now)).pools
    assert (view.spec.min, view.spec.max, view.spec.idle_timeout_seconds) == (0, 0, 0.0)
    assert view.paused is None, "a deleted pool shrinks, also if it was paused"
    with pytest.raises(Conflict, match="being deleted"):
        await fleet.put_pool(larger, now=rig.now)
    assert await fleet.forget_pool("p", now=rig.now)
    assert await fleet.list_pools() == []
    kinds = [kind for kind in await rig.kinds() if kind.startswith("pool.")]
    assert kinds == [
        "pool.created", "pool.changed", "pool.paused", "pool.resumed", "pool.paused", "pool.deleted",
        "pool.forgotten",
    ]  # fmt: skip


async def test_a_deleted_pool_is_kept_until_its_last_machine_is_gone(rig: Rig) -> None:
    host = await made(rig)
    await rig.store.fleet.delete_pool("p", now=rig.now)
    assert not await rig.store.fleet.forget_pool("p", now=rig.now)
    await rig.store.fleet.want_end(host, "deleted", now=rig.now)
    assert not await rig.store.fleet.forget_pool("p", now=rig.now), "it may run still"
    assert await rig.store.fleet.note_gone(host, InstanceEvent.VANISH, "ended", now=rig.now)
    assert await rig.store.fleet.forget_pool("p", now=rig.now)


async def test_cycles_are_kept_newest_first(rig: Rig) -> None:
    await rig.store.fleet.put_pool(POOL, now=rig.now)
    for number in range(3):
        summary = CycleSummary(
            timestamp=rig.tick(1), pool="p", actions=CycleActions(hosts_rented=number)
        )
        await rig.store.fleet.record_cycle(summary, f"blocked {number}")
    found = await rig.store.fleet.list_cycles("p", 2)
    assert [cycle.actions.hosts_rented for cycle in found] == [2, 1]
    pool = await rig.store.fleet.get_pool("p")
    assert (pool.blocked, pool.cycled_at) == ("blocked 2", rig.now)


async def test_an_installation_keeps_its_id(rig: Rig) -> None:
    first = await rig.store.fleet.installation()
    assert len(first) == 12
    assert first == await rig.store.fleet.installation()


# ---- from the intent to the active host


async def test_an_intent_becomes_a_host_under_its_own_token_whatever_name_its_agent_gives(
    rig: Rig,
) -> None:
    host = await intend(rig)
    (spawning,) = await shown(rig)
    assert (spawning.state, spawning.instance) == (HostState.SPAWNING, InstanceState.INTENDED)
    assert (spawning.heartbeat_seconds, spawning.idle_seconds, spawning.ref) == (None, None, None)
    record = await rig.store.hosts.get_host(host)
    assert (record.name, record.heartbeat_at, record.offer) == ("p-aaaaaaaa", None, "a100")
    await ask(rig, host)
    token = await rig.store.tokens.use_join_token(token_of(host), now=rig.now)
    assert token is not None
    assert token.host_id == host
    rig.tick(5)
    assert await rig.store.fleet.note_made(host, "m-1", now=rig.now)
    await rig.store.hosts.register_host(host, HASH, "inc-00001", facts(), now=rig.tick(5))
    record = await rig.store.hosts.get_host(host)
    assert (record.name, record.pool, record.state) == ("p-aaaaaaaa", "p", HostState.PREFLIGHT)
    (checked,) = await shown(rig)
    assert (checked.preflight, checked.heartbeat_seconds) == ("pending", 0.0)
    made = HostCheckRecord(
        number="one",
        incarnation="",
        at=rig.now,
        kind="preflight",
        verdict=CheckVerdict.WARN,
        message="its clock is off",
    )
    await rig.store.health.note_health(host, "inc-00001", check=made, now=rig.now)
    (checked,) = await shown(rig)
    assert (checked.preflight, checked.preflight_reason) == ("warn", "its clock is off")
    assert await rig.store.fleet.promote_host(host, "ok", now=rig.now) == 10.0
    assert await rig.store.fleet.promote_host(host, "ok", now=rig.now) is None, "once"
    (serving,) = await shown(rig)
    assert (serving.state, serving.idle_seconds, serving.leases) == (HostState.ACTIVE, 0.0, 0)
    assert [c for c in await rig.kinds() if c.startswith("host.")] == [
        "host.intended", "host.made", "host.registered", "host.moved",
    ]  # fmt: skip


async def test_a_host_that_lacks_what_was_rented_fails_its_check(rig: Rig) -> None:
    await joined(rig, gpus=[])
    (host,) = await shown(rig)
    assert (host.preflight, host.preflight_reason) == (
        "fail",
        "offer a100 has 1 GPUs, and the host shows 0",
    )


async def test_a_repeated_registration_leaves_an_active_host_active(rig: Rig) -> None:
    host = await active(rig)
    _, key = await rig.running(host=host)
    key_hash = host.encode().ljust(32, b".")
    await rig.store.hosts.register_host(host, key_hash, "inc-00001", facts(), now=rig.now)
    assert (await rig.sync(host, live=[key])).renewed == ((key, 300.0),)
    assert (await state_of(rig, host))[0] is HostState.ACTIVE
    await rig.store.hosts.register_host(host, key_hash, "inc-00002", facts(), now=rig.now)
    assert (await state_of(rig, host))[0] is HostState.PREFLIGHT, "a new incarnation starts over"


async def test_of_two_cycles_that_saw_the_same_pool_one_spawns(rig: Rig) -> None:
    await intend(rig, "host-1")
    fleet = rig.store.fleet
    assert await fleet.intend("p", A100, ["host-2"], "x", open_machines=0, now=rig.now) == []
    assert await fleet.intend("p", A100, ["host-2"], "x", open_machines=1, now=rig.now) == [
        "host-2"
    ]


async def test_an_answer_that_comes_twice_is_written_once(rig: Rig) -> None:
    host = await made(rig)
    assert await rig.store.fleet.note_made(host, "m-2", now=rig.now) is None
    assert await rig.store.fleet.ask(host, "t2", HASH, 60.0, now=rig.now) is None
    found = (await rig.store.fleet.find_instances([host]))[host]
    assert (found.ref, found.state) == ("m-1", InstanceState.MADE)


async def test_a_refused_order_is_trouble_for_its_offer_and_an_error_for_its_host(rig: Rig) -> None:
    fleet = rig.store.fleet
    for number, final in enumerate((False, True)):
        host = await intend(rig, f"host-{number}")
        await ask(rig, host)
        assert await fleet.note_denied(host, "no capacity", final=final, now=rig.now)
        assert await state_of(rig, host) == (HostState.ERROR, InstanceState.GONE)
    (view,) = (await fleet.read_snapshot(now=rig.tick(3))).pools
    trouble = view.trouble["a100"]
    assert (trouble.refusals, trouble.age_seconds, trouble.reason) == (2, 3.0, "no capacity")
    assert [o.fault for o in view.outcomes] == [HostFault.NO_INSTANCE_ID], "capacity is no fault"
    await made(rig, "host-9")
    (view,) = (await fleet.read_snapshot(now=rig.now)).pools
    assert view.trouble == {}, "a machine ends the trouble"


@pytest.mark.parametrize("mend", ["change", "resume"])
async def test_a_mended_pool_begins_anew(rig: Rig, mend: str) -> None:
    """What spawns met before its change, or before a person's word, holds it no longer."""
    fleet = rig.store.fleet
    for number in range(3):
        host = await intend(rig, f"host-{number}")
        await ask(rig, host)
        await fleet.note_denied(host, "a wrong key", final=True, now=rig.now)
    await fleet.put_pool(POOL, now=rig.now)  # the same again mends nothing
    (view,) = (await fleet.read_snapshot(now=rig.now)).pools
    assert (len(view.outcomes), view.trouble["a100"].refusals) == (3, 3)
    if mend == "change":
        await fleet.put_pool(msgspec.structs.replace(POOL, config={"key": "right"}), now=rig.now)
    else:
        await fleet.resume_pool("p", now=rig.now)
        assert (await rig.kinds())[-1] == "pool.resumed"
    (view,) = (await fleet.read_snapshot(now=rig.now)).pools
    assert (view.outcomes, view.trouble) == ((), {})
    before = len(await rig.kinds())
    await fleet.resume_pool("p", now=rig.now)
    assert len(await rig.kinds()) == before, "there was nothing to change"


# ---- error, the fence, the end


async def test_a_host_in_error_gets_no_work_and_no_renewal_and_is_told_why(rig: Rig) -> None:
    host = await active(rig)
    job, key = await rig.running(host=host)
    waiting = await rig.submit()
    assert waiting in await rig.admit()
    assert await rig.store.fleet.fail_host(
        host, HostFault.STUCK_TASK, "a task does not end", now=rig.now
    )
    answer = await rig.sync(host, live=[key])
    assert (answer.renewed, answer.lost, answer.offers) == ((), (), ())
    assert answer.fenced == "a task does not end"
    (found,) = await shown(rig)
    assert (found.state, found.leases) == (HostState.ERROR, 2)
    assert await rig.store.fleet.free_host(host, "x", now=rig.now) is None, "its leases may run yet"
    ended = await rig.sync(host, ended=[(key, OK)])
    assert ended.acked == (key,), "what ends there counts"
    assert (await rig.job(job)).state is JobState.SUCCEEDED
    rig.tick(400)
    await rig.store.leases.lapse_leases(START, now=rig.now)
    await rig.store.admission.expire_reservations(30.0, now=rig.now)
    assert await rig.store.fleet.free_host(host, "no lease is left", now=rig.now) == []
    assert await state_of(rig, host) == (HostState.TERMINATED, InstanceState.ENDING)


async def test_the_tasks_of_a_machine_that_is_gone_are_freed_at_once_and_charged(rig: Rig) -> None:
    """LEASE-3: evidence does not wait. A task that kills every host it gets fails and says so."""
    job = ""
    for number in range(4):
        host = await active(rig, f"host-{number}")
        if number == 0:
            job, _ = await rig.running(host=host)
        else:
            assert job in await rig.admit()
            key = await rig.key(job)
            await rig.sync(host)
            await rig.sync(host, live=[key], started=[key])
        assert await rig.store.fleet.note_gone(
            host, InstanceEvent.VANISH, "its node failed", now=rig.now
        )
        assert await state_of(rig, host) == (HostState.ERROR, InstanceState.GONE)
        assert await rig.store.fleet.free_host(host, "its node failed", now=rig.now) == [job]
        assert await rig.complete(infra_cap=3) == [job]
        await rig.release()
        rig.tick(3600)
        await rig.release()
        found = await rig.job(job)
        assert found.infra_charged == number + 1
        if found.state is JobState.FAILED:
            break
    assert (found.state, found.infra_charged) == (JobState.FAILED, 4)
    assert found.cause is Cause.AGENT_TRANSIENT
    assert "its budget of 3 is spent" in found.reason


@pytest.mark.parametrize("how", ["gone", "lapsed"])
async def test_preemption_by_a_provider_is_charged_to_nothing_and_its_words_are_the_reason(
    rig: Rig, how: str
) -> None:
    """Six in a row, of which infra_cap would allow three."""
    job = ""
    for number in range(6):
        host = await active(rig, f"host-{number}")
        if number == 0:
            job, _ = await rig.running(host=host)
        else:
            assert job in await rig.admit()
            key = await rig.key(job)
            await rig.sync(host)
            await rig.sync(host, live=[key], started=[key])
        fleet, why = rig.store.fleet, f"PREEMPTED on n{number}"
        if how == "gone":
            assert await fleet.note_gone(
                host, InstanceEvent.VANISH, why, fault=HostFault.PREEMPTED, now=rig.now
            )
            assert await fleet.free_host(host, why, now=rig.now) == [job]
        else:  # the lease was over before the machine was gone from the listing
            await fleet.note_words({host: why}, {host: "preempted"})
            rig.tick(400)
            assert await rig.store.leases.lapse_leases(START, now=rig.now) == [job]
            await rig.store.hosts.move_host(host, "terminate", "it is gone", now=rig.now)
        assert await rig.complete(infra_cap=3) == [job]
        found = await rig.job(job)
        assert (found.infra_charged, found.cause) == (0, Cause.PREEMPTED)
        assert f"PREEMPTED on n{number}" in found.reason
        await rig.release()


async def test_a_host_that_was_given_up_does_not_come_back(rig: Rig) -> None:
    host = await active(rig)
    await rig.store.fleet.fail_host(host, HostFault.HEARTBEAT_EXPIRED, "silent", now=rig.now)
    await rig.store.fleet.want_end(host, "it is in error", now=rig.now)
    key_hash = host.encode().ljust(32, b".")
    for incarnation in ("inc-00001", "inc-00002"):
        with pytest.raises(Forbidden, match="not wanted any more"):
            await rig.store.hosts.register_host(host, key_hash, incarnation, facts(), now=rig.now)
    assert await rig.store.fleet.note_gone(host, InstanceEvent.VANISH, "ended", now=rig.now)
    assert await state_of(rig, host) == (HostState.TERMINATED, InstanceState.GONE)
    with pytest.raises(Forbidden):
        await rig.store.hosts.register_host(host, key_hash, "inc-00003", facts(), now=rig.now)


@pytest.mark.parametrize("how", ["terminate", "leaving"])
async def test_a_host_that_is_terminated_gives_its_machine_back(rig: Rig, how: str) -> None:
    host = await active(rig)
    if how == "terminate":
        await rig.store.hosts.move_host(host, "terminate", "by hand", now=rig.now)
    else:
        await rig.sync(host, leaving=True)
    assert await state_of(rig, host) == (HostState.TERMINATED, InstanceState.ENDING)
    (found,) = await shown(rig)
    assert found.instance is InstanceState.ENDING, "it is shown until its end is confirmed"


async def test_an_intent_that_is_not_wanted_any_more_is_over_at_once(rig: Rig) -> None:
    host = await intend(rig)
    await rig.store.fleet.want_end(host, "too many", now=rig.now)
    assert await state_of(rig, host) == (HostState.TERMINATED, InstanceState.GONE)
    assert await shown(rig) == []


async def test_an_unanswered_question_that_is_not_wanted_is_ended_when_it_shows(rig: Rig) -> None:
    host = await intend(rig)
    await ask(rig, host)
    await rig.store.fleet.want_end(host, "too many", now=rig.now)
    assert (await state_of(rig, host))[1] is InstanceState.ENDING
    late = await rig.store.fleet.note_made(host, "m-7", now=rig.now)
    assert late is not None
    assert (late.state, late.ref) == (InstanceState.ENDING, "m-7")
    await rig.store.fleet.note_end_asked(host, now=rig.tick(1))
    assert (await rig.store.fleet.find_instances([host]))[host].end_asked_at == rig.now


# ---- scaling down


async def test_a_host_drains_for_scale_only_while_it_is_as_idle_as_the_plan_saw_it(
    rig: Rig,
) -> None:
    """SCALE-2: of a claim and a drain that race, the second finds what the first did."""
    host = await active(rig)
    job = await rig.submit()
    assert job in await rig.admit()
    assert not await rig.store.fleet.drain_if_idle(host, 0, 60.0, "idle", now=rig.now)
    key = await rig.key(job)
    await rig.sync(host)
    await rig.sync(host, ended=[(key, OK)])
    rig.tick(20)
    (found,) = await shown(rig)
    assert (found.leases, found.idle_seconds) == (0, 20.0), "idle since the last lease"
    assert await rig.store.fleet.drain_if_idle(host, 0, 60.0, "idle", now=rig.now)
    other = await rig.submit()
    assert other not in await rig.admit()
    (found,) = await shown(rig)
    assert (found.state, found.draining_for_scale) == (HostState.DRAINING, True)
    assert not await rig.store.fleet.drain_if_idle(host, 0, 60.0, "idle", now=rig.now)


async def test_heartbeats_do_not_end_idleness(rig: Rig) -> None:
    host = await active(rig)
    rig.tick(30)
    await rig.sync(host)
    (found,) = await shown(rig)
    assert (found.idle_seconds, found.heartbeat_seconds) == (30.0, 0.0)


async def test_a_task_that_outlives_its_stop_is_evidence(rig: Rig) -> None:
    host = await active(rig)
    job, key = await rig.running(host=host)
    await rig.store.jobs.drain_job(job, Cause.USER_CANCELLED, "asked", now=rig.now)
    rig.tick(POOL.stuck_timeout_seconds + 59)
    await rig.sync(host, live=[key])
    assert (await shown(rig))[0].stuck is None
    rig.tick(1)
    (found,) = await shown(rig)
    assert found.stuck == f"a task of job {job} should have stopped 300 s ago and has not"


# ---- the snapshot


async def test_a_host_that_can_start_nothing_is_shown_set_aside(rig: Rig) -> None:
    """POOL-3: by the word that admission goes by (ASIDE-1)."""
    host = await active(rig)
    for faults, aside in (
        ([Hindrance(part="starts", reason="its disk is full")], True),
        ([], False),
    ):
        await rig.sync(host, faults=faults)
        (found,) = await shown(rig)
        assert found.aside is aside


async def test_a_host_with_outputs_still_to_send_is_shown_with_the_time_since_their_end(
    rig: Rig,
) -> None:
    host = await active(rig)
    job = await rig.submit(outputs=("out",))
    assert job in await rig.admit()
    key = await rig.key(job)
    await rig.sync(host)
    await rig.sync(host, live=[key], started=[key])
    task = await rig.store.outputs.find_outputs_task(host, rig.incarnations[host], key, 1)
    begun = NewOutputs(event=OutputsEvent.SEND, digest="", files=0, left_out=[])
    await rig.store.outputs.put_outputs(host, task, key, begun, now=rig.now)
    assert (await shown(rig))[0].outputs_seconds is None, "the program still runs"
    await rig.sync(host, ended=[(key, OK)])
    rig.tick(20)
    (found,) = await shown(rig)
    assert (found.leases, found.outputs_seconds) == (0, 20.0)
    over = NewOutputs(event=OutputsEvent.FINISH, digest="", files=0, left_out=[])
    await rig.store.outputs.put_outputs(host, task, key, over, now=rig.now)
    assert (await shown(rig))[0].outputs_seconds is None


async def test_rented_hosts_that_fell_silent_with_work_are_found(rig: Rig) -> None:
    """ASK-1."""
    idle, busy = await active(rig, "host-idle"), await active(rig, "host-busy")
    await rig.running(host=busy)
    own = await rig.host("own")
    await rig.running(host=own)
    rig.tick(9)
    assert await rig.store.fleet.find_silent(9.0, now=rig.now) == {}
    assert await rig.store.fleet.find_silent(9.0, now=rig.tick(1)) == {busy: "p"}
    await rig.store.fleet.want_end(busy, "enough", now=rig.now)
    assert await rig.store.fleet.find_silent(9.0, now=rig.now) == {}, "its end is asked for already"
    assert idle


async def test_waiting_jobs_are_counted_by_shape(rig: Rig) -> None:
    for _ in range(3):
        await rig.submit()
    rig.tick(10)
    await rig.submit(tasks=4, gpus=1, host_labels={"zone": "a"})
    await rig.submit(queue="gpu", gpus=1)
    await rig.store.settings.pause_queue("gpu", "no", hard=False, now=rig.now)
    found = (await rig.store.fleet.read_snapshot(now=rig.tick(1))).waiting
    assert sorted(
        (w.queue, w.jobs, w.tasks, w.gpus, w.cpu_slots, w.oldest_seconds) for w in found
    ) == [("cpu", 1, 4, 1, 0, 1.0), ("cpu", 3, 1, 0, 1, 11.0)]
    assert {tuple(w.host_labels.items()) for w in found} == {(), (("zone", "a"),)}


async def test_waiting_jobs_are_counted_apart_once_they_are_worth_hosts_of_their_own(
    rig: Rig,
) -> None:
    """DEMAND-5"""
    never = msgspec.structs.replace(POOL, name="q", rent_after_seconds=None)
    for spec in (POOL, never):
        await rig.store.fleet.put_pool(spec, now=rig.now)
    for seconds in (1, 29, 1):
        await rig.submit()
        rig.tick(seconds)
    found = (await rig.store.fleet.read_snapshot(now=rig.now)).waiting
    waited = [(w.jobs, w.newest_seconds, w.oldest_seconds) for w in found]
    assert sorted(waited) == [(1, 1.0, 1.0), (2, 30.0, 31.0)]
    assert [POOL.rents_alone(w.newest_seconds) for w in found].count(True) == 1
    assert not any(never.rents_alone(w.newest_seconds) for w in found)


async def test_what_projects_may_still_start_is_shown(rig: Rig) -> None:
    await rig.host()
    await rig.store.settings.put_project("small", {"quota_jobs": 2, "quota_gpus": 5})
    await rig.running(project="small")
    for project in ("small", "small", "free"):
        await rig.submit(project=project)
    found = await rig.store.fleet.read_snapshot(now=rig.tick(1))
    assert sorted((w.project, w.jobs) for w in found.waiting) == [("free", 1), ("small", 2)]
    assert found.quotas == {"small": QuotaLeft(jobs=1, gpus=5)}


async def test_the_words_of_providers_are_kept(rig: Rig) -> None:
    host = await made(rig)
    fleet = rig.store.fleet
    await fleet.note_words({host: "Pending: Insufficient nvidia.com/gpu", "unknown": "x"})
    assert (await fleet.find_instances([host]))[host].said == "Pending: Insufficient nvidia.com/gpu"
    (row,) = await shown(rig)
    assert row.said == "Pending: Insufficient nvidia.com/gpu"
    assert (await rig.store.hosts.get_host(host)).provider_says == row.said
    assert await fleet.fail_host(
        host, HostFault.SPAWN_TIMEOUT, f"too late: {row.said}", now=rig.now
    )
    (outcome,) = (await fleet.read_snapshot(now=rig.now)).pools[0].outcomes
    assert (outcome.fault, outcome.reason) == ("spawn_timeout", f"too late: {row.said}")
    assert (await rig.store.hosts.get_host(host)).provider_says == "", "its reason says it now"


async def test_a_provider_that_asks_for_patience_is_on_record(rig: Rig) -> None:
    fleet = rig.store.fleet
    await fleet.put_pool(POOL, now=rig.now)
    await fleet.note_throttled("p", 90.0, "slow down", now=rig.now)
    await fleet.note_throttled("p", 20.0, "slow down again", now=rig.now)  # never earlier
    (view,) = (await fleet.read_snapshot(now=rig.tick(30))).pools
    assert (view.quiet_seconds, view.quiet_reason) == (60.0, "slow down again")
    found = await fleet.get_pool("p")
    assert found.quiet_until == START + timedelta(seconds=90)
    (view,) = (await fleet.read_snapshot(now=rig.tick(61))).pools
    assert view.quiet_seconds == 0.0


async def test_listings_are_noted(rig: Rig) -> None:
    host = await made(rig)
    fleet = rig.store.fleet
    since = rig.tick(1)
    await fleet.note_listing([], [host], now=rig.now)
    await fleet.note_listing([], [host], now=rig.tick(9))
    found = (await fleet.find_instances([host]))[host]
    assert (found.missing_times, found.missing_since) == (2, since)
    (row,) = await shown(rig)
    assert (row.misses, row.missing_seconds, row.seen_seconds) == (2, 9.0, 10.0)
    assert row.asked_seconds == 10.0
    await fleet.note_listing([host], [], now=rig.tick(1))
    found = (await fleet.find_instances([host]))[host]
    seen_at = rig.now
    assert (found.missing_times, found.missing_since, found.seen_at) == (0, None, seen_at)
    await fleet.note_listing([host], [], now=rig.tick(30))
    assert (await fleet.find_instances([host]))[host].seen_at == seen_at, "nothing has changed"
    await fleet.note_listing([host], [], now=rig.tick(SEEN_SECONDS))
    assert (await fleet.find_instances([host]))[host].seen_at == rig.now
    await fleet.want_end(host, "enough", now=rig.now)
    await fleet.note_listing([host], [], now=rig.tick(1))
    assert (await fleet.find_instances([host]))[host].seen_at == rig.now, "its end is awaited"
    assert await fleet.list_instances(states=[InstanceState.MADE]) == []
    assert [i.host_id for i in await fleet.list_instances(states=[InstanceState.ENDING])] == [host]


async def test_money_counts_from_the_question_to_the_end_within_the_day(rig: Rig) -> None:
    fleet = rig.store.fleet
    host = await made(rig, "host-a")
    never = await intend(rig, "host-b")
    await ask(rig, never)
    rig.tick(3600)
    money = (await fleet.read_money(now=rig.now))["p"]
    assert (money.spent_today_usd, money.usd_per_hour) == (pytest.approx(2.0), 2.0), "one was made"
    await fleet.note_denied(never, "none", final=False, now=rig.now)
    money = (await fleet.read_money(now=rig.now))["p"]
    assert (money.spent_today_usd, money.usd_per_hour) == (pytest.approx(2.0), 2.0)
    assert (await fleet.read_snapshot(now=rig.now)).pools[0].spent_today_usd == pytest.approx(2.0)
    await fleet.want_end(host, "done", now=rig.now)
    assert (await fleet.read_money(now=rig.tick(1800)))["p"].usd_per_hour == 2.0, "until confirmed"
    await fleet.note_gone(host, InstanceEvent.VANISH, "ended", now=rig.now)
    rig.tick(1800)
    money = (await fleet.read_money(now=rig.now))["p"]
    assert (money.spent_today_usd, money.usd_per_hour) == (pytest.approx(3.0), 0.0)
    tomorrow = START.replace(hour=0) + timedelta(days=1)
    assert "p" not in await fleet.read_money(now=tomorrow)


async def test_old_machines_are_forgotten_with_their_hosts(rig: Rig) -> None:
    host = await made(rig)
    await rig.store.fleet.want_end(host, "done", now=rig.now)
    await rig.store.fleet.note_gone(host, InstanceEvent.VANISH, "ended", now=rig.now)
    assert await rig.store.fleet.prune_fleet(1.0, now=rig.tick(80_000)) == 0
    assert await rig.store.fleet.prune_fleet(1.0, now=rig.tick(10_000)) == 1
    assert await rig.store.fleet.list_instances(include_gone=True) == []
    with pytest.raises(NotFound):
        await rig.store.hosts.get_host(host)


async def test_an_offer_that_does_not_say_its_memory_has_what_its_last_host_showed(
    rig: Rig,
) -> None:
    """Hosts had been rented, one after the other, for a job of more memory than any of them has."""
    silent = PoolSpec(
        name="p", provider="local", offers=(msgspec.structs.replace(A100, memory_bytes=0),)
    )
    await rig.store.fleet.put_pool(silent, now=rig.now)
    before = (await rig.store.hosts.host_sizes())[0].memory_bytes
    assert before > 1 << 50, "nothing is known"
    host = await active(rig)
    await rig.store.fleet.put_pool(silent, now=rig.now)
    shows = (await rig.store.hosts.get_host(host)).memory_bytes
    assert shows > 0
    await rig.store.hosts.move_host(host, "terminate", "idle", now=rig.now)
    (view,) = (await rig.store.fleet.read_snapshot(now=rig.now)).pools
    assert [offer.memory_bytes for offer in view.spec.offers] == [shows]
    sizes = [size for size in await rig.store.hosts.host_sizes() if size.pool == "p"]
    assert [(s.memory_bytes, s.count) for s in sizes] == [(shows, silent.max)]


async def test_offers_of_pools_are_sizes_that_jobs_may_ask_for(rig: Rig) -> None:
    await rig.store.fleet.put_pool(POOL, now=rig.now)
    (size,) = await rig.store.hosts.host_sizes()
    assert (size.name, len(size.gpus), size.cpu_slots) == ("p/a100", 1, 4)


# ---- views


async def test_a_host_of_no_pool_serves_and_is_not_the_fleets(rig: Rig) -> None:
    await rig.submit()
    assert (await rig.store.views.read_status()).health == "waiting"
    await rig.host()
    status = await rig.store.views.read_status()
    assert (status.queued, status.active, status.total, status.health) == (1, 0, 0, "ok")


async def test_the_views_show_hosts_and_what_they_did(rig: Rig) -> None:
    host = await active(rig)
    _, key = await rig.running(host=host)
    await rig.sync(host, ended=[(key, OK)])
    await rig.submit()
    status = await rig.store.views.read_status()
    assert (status.queued, status.active, status.total, status.health) == (1, 1, 1, "ok")
    (did,) = await rig.store.views.list_performance()
    assert (did.host, did.done, did.failed, did.success_rate) == (
        "p-aaaaaaaa", 1, 0, 1.0,
    )  # fmt: skip
    (health,) = await rig.store.views.list_health()
    assert (health.host, health.task, health.vram_used) == ("p-aaaaaaaa", None, None)
    await rig.store.fleet.fail_host(host, HostFault.STUCK_TASK, "stuck", now=rig.now)
    status = await rig.store.views.read_status()
    assert (status.active, status.health) == (0, "degraded")
    assert await rig.store.views.list_health() == []
