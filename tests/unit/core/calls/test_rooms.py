"""Which hosts an executor could run on, and whether a model fits any of them."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.rooms import (
    MOST_ON_A_HOST,
    count_beside,
    find_room,
    fits_model,
    list_hosts_of,
)
from holdfast.core.calls.values import Family
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.gpus import Gpu
from holdfast.core.records import HostRecord
from holdfast.core.states import HostState

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CPU = Family(app="mytasks", queue="cpu")
GPU = Family(app="mytasks", queue="gpu", gpus=2)
GIB = 1 << 30


def host(name: str = "h1", **fields: Any) -> HostRecord:
    plain: dict[str, Any] = {
        "id": name,
        "name": name,
        "pool": "local",
        "state": HostState.ACTIVE,
        "reason": "",
        "incarnation": "i" * 8,
        "queues": (),
        "labels": {"app/mytasks": "yes"},
        "cpu_slots": 8,
        "memory_bytes": 32 * GIB,
        "gpus": (),
        "address": "127.0.0.1",
        "version": "",
        "probe": "real",
        "registered_at": NOW,
    }
    return HostRecord(**{**plain, **fields})


def gpus(count: int, memory_bytes: int = 0) -> tuple[Gpu, ...]:
    return tuple(Gpu(index=n, memory_bytes=memory_bytes) for n in range(count))


def test_only_live_hosts_that_list_the_app_and_serve_the_queue_count() -> None:
    others = [
        host("a", labels={}),
        host("b", labels={"app/mytasks": "no"}),
        host("c", queues=("gpu",)),
        host("d", state=HostState.DRAINING),
        host("e", flagged_dead_at=NOW),
    ]
    assert list(list_hosts_of(CPU, others)) == []
    brought = msgspec.structs.replace(CPU, code=CodeRef(digest="a" * 64))
    assert [h.id for h in list_hosts_of(brought, others)] == ["a", "b"]
    assert not find_room(CPU, others, [], None).listed
    assert find_room(CPU, [*others, host()], [], None).slots == 8


def test_hosts_are_chosen_and_avoided_by_labels_as_for_jobs() -> None:
    racks = [host(rack, labels={"app/mytasks": "yes", "rack": rack}) for rack in ("b11", "b12")]
    only = msgspec.structs.replace(CPU, host_labels={"rack": "b12"})
    never = msgspec.structs.replace(CPU, host_labels={"rack": "!b12"})
    assert [found.name for found in list_hosts_of(only, racks)] == ["b12"]
    assert [found.name for found in list_hosts_of(never, racks)] == ["b11"]
    nowhere = msgspec.structs.replace(CPU, host_labels={"rack": "b13"})
    assert not find_room(nowhere, racks, [], None).listed


def test_room_is_by_the_scarcest_need() -> None:
    wide = host(gpus=gpus(5))
    assert find_room(GPU, [wide], [], None).slots == 2
    heavy = msgspec.structs.replace(CPU, memory_bytes=10 * GIB)
    assert find_room(heavy, [wide], [], None).slots == 3
    free = msgspec.structs.replace(CPU, cpus=0)
    assert find_room(free, [wide], [], None).slots == MOST_ON_A_HOST
    assert find_room(CPU, [wide, host("h2")], [], 3).bound == 3


def test_a_pool_that_lists_the_app_is_room_to_come() -> None:
    offers = [{"name": "o", "usd_per_hour": 1.0}]
    values = {"name": "p", "provider": "local", "offers": offers, "max": 4, "jobs_per_host": 2.0}
    pool = msgspec.convert({**values, "labels": {"app/mytasks": "yes"}}, PoolSpec)
    room = find_room(CPU, [], [pool], None)
    assert (room.slots, room.listed) == (8, True)
    assert not find_room(CPU, [], [msgspec.structs.replace(pool, labels={})], None).listed
    fast = msgspec.structs.replace(CPU, host_labels={"disk": "fast"})
    assert not find_room(fast, [], [pool], None).listed


def test_a_model_fits_one_gpu_or_the_memory_it_shares() -> None:
    assert fits_model(0.0, [])
    assert not fits_model(28.0, [host(gpus=gpus(4, 24 * GIB))])
    assert fits_model(24.0, [host(gpus=gpus(1, 24 * GIB))])
    assert fits_model(28.0, [host(gpus=gpus(1))])  # unified: the host's 32 GiB


def test_gpus_that_are_held_by_waiting_calls_are_no_room() -> None:
    boxes = [host("a", gpus=gpus(2)), host("b", gpus=gpus(3))]
    assert count_beside(GPU, boxes, [], {}) == 2
    assert count_beside(GPU, boxes, [], {"a": 1, "b": 1}) == 1
    assert count_beside(GPU, boxes, [], {"a": 2, "b": 2}) == 0
