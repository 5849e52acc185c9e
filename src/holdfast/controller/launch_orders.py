"""What a host is told to run: a job's spec, its place, and in a gang the peers and the rendezvous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.controller.settings_cache import Settings
from holdfast.core.records import CheckpointRecord
from holdfast.store.interface import Store, TaskOffer
from holdfast.store.values import Seat
from holdfast.wire import agent as wire


async def make_orders(store: Store, offers: Sequence[TaskOffer], settings: Settings) -> list[wire.LaunchOrder]:
    """The launch orders of offered tasks. What an earlier attempt of a rank saved is looked up where there was one."""
    again = [(offer.job.id, offer.task.rank) for offer in offers if offer.task.attempt > 1]
    kept = await store.find_newest_checkpoints(again) if again else {}
    return [make_order(offer, settings, kept.get((offer.job.id, offer.task.rank))) for offer in offers]


def make_order(offer: TaskOffer, settings: Settings, kept: CheckpointRecord | None = None) -> wire.LaunchOrder:
    """The launch order of an offered task. kept: the newest checkpoint of its rank."""
    job, spec, task = offer.job, offer.job.spec, offer.task
    return wire.LaunchOrder(
        key=task.key, attempt=task.attempt, name=job.name, queue=job.queue, project=job.project, argv=list(spec.argv),
        env=dict(spec.env), secrets=dict(offer.secrets), cwd=spec.cwd, shell=spec.shell, gpus=list(task.devices),
        memory_bytes=job.memory_bytes, world_size=job.tasks, ttl_seconds=task.lease_ttl_seconds,
        watch=settings.watch(job.queue, spec), image=spec.image, runtime=spec.runtime, pull=spec.pull,
        volumes=list(spec.volumes), pull_seconds=settings.number("image_pull_seconds", job.queue, spec),
        **_place_in_gang(offer), **_hand_on(offer, settings, kept),
    )  # fmt: skip


def _hand_on(offer: TaskOffer, settings: Settings, kept: CheckpointRecord | None) -> dict[str, Any]:
    if kept is None:
        return {}
    found = wire.CheckpointOffer(number=kept.number, size=kept.size, sha256=kept.sha256, step=kept.step)
    inline = settings.number("checkpoint_inline_kb", offer.job.queue, offer.job.spec) * 1024
    return {"checkpoint": found, "inline_bytes": int(inline)}


def _place_in_gang(offer: TaskOffer) -> dict[str, Any]:
    """Ranks as torchrun counts them: hosts in the order of their first rank, ranks within a host in order."""
    if not offer.seats:
        return {}
    hosts: dict[str, list[Seat]] = {}
    for seat in offer.seats:
        hosts.setdefault(seat.host_id, []).append(seat)
    first = offer.seats[0]
    mine = hosts[offer.task.host_id or ""]
    shared = len(mine) > 1 and all(len(seat.devices) == 1 for seat in mine)
    return {
        "local_rank": [seat.rank for seat in mine].index(offer.task.rank), "local_world_size": len(mine),
        "visible_gpus": [seat.devices[0] for seat in mine] if shared else [],
        "group_rank": list(hosts).index(offer.task.host_id or ""), "group_world_size": len(hosts),
        "master_addr": first.address, "master_port": first.port or 0,
        "peers": [wire.Peer(rank=s.rank, host=s.host_name, address=s.address) for s in offer.seats],
    }  # fmt: skip
