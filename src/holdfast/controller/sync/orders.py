"""What a host is told to run: a job's spec, its place, and in a gang the peers and the rendezvous.

Where the ranks of a gang are is worked out once for all its hosts, and told once in each answer,
not with every order: a list of all ranks in the order of each would make a start cost the square of
their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.controller.runtime.settings import Settings
from holdfast.core.records import CheckpointRecord
from holdfast.moves.values import GangSeat, TaskOffer
from holdfast.store.port.store import Store
from holdfast.wire import agent as wire

MAX_LAYOUTS = 64


class GangLayout:
    """The ranks of one attempt of a gang, host by host. Hosts are in the order of their first
    ranks, as torchrun counts them."""

    def __init__(self, job_id: str, epoch: int, seats: Sequence[GangSeat]) -> None:
        self.seats = seats
        self.hosts: dict[str, list[GangSeat]] = {}
        for seat in seats:
            self.hosts.setdefault(seat.host_id, []).append(seat)
        self.numbers = {host_id: number for number, host_id in enumerate(self.hosts)}
        places = {seat.rank: self.numbers[seat.host_id] for seat in seats}
        self.gang = wire.Gang(
            job_id=job_id,
            epoch=epoch,
            places=[places.get(rank, -1) for rank in range(max(places) + 1)],
            hosts=[
                wire.GangHost(name=mine[0].host_name, address=mine[0].address)
                for mine in self.hosts.values()
            ],
        )

    def place(self, offer: TaskOffer, *, shared: bool) -> dict[str, Any]:
        """What an order says of its rank's place. shared: its peers are in the answer's `gangs`."""
        first, host_id = self.seats[0], offer.task.host_id or ""
        mine = self.hosts[host_id]
        one_each = len(mine) > 1 and all(len(seat.devices) == 1 for seat in mine)
        return {
            "local_rank": [seat.rank for seat in mine].index(offer.task.rank),
            "local_world_size": len(mine),
            "visible_gpus": [seat.devices[0] for seat in mine] if one_each else [],
            "group_rank": self.numbers[host_id],
            "group_world_size": len(self.hosts),
            "master_addr": first.address,
            "master_port": first.port or 0,
            "peers": [] if shared else self.gang.list_peers(),
        }


class GangLayouts:
    """The layouts of gangs that are being started, kept for the next host's answer."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], GangLayout] = {}

    def find(self, offer: TaskOffer) -> GangLayout | None:
        """The layout of an offer's gang, None for a job of one task."""
        if not offer.seats:
            return None
        key = (offer.job.id, offer.task.epoch)
        kept = self._kept.get(key)
        if kept is None or (kept.seats is not offer.seats and kept.seats != offer.seats):
            self._kept.pop(key, None)
            while len(self._kept) >= MAX_LAYOUTS:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[key] = GangLayout(*key, offer.seats)
        kept.seats = offer.seats  # equal, and the same tuple for the other hosts of its batch
        return kept

    def list_gangs(self, offers: Iterable[TaskOffer]) -> list[wire.Gang]:
        """The gangs that offers are of, each once."""
        return list(
            {id(found): found.gang for offer in offers if (found := self.find(offer))}.values()
        )


async def make_orders(
    store: Store,
    offers: Sequence[TaskOffer],
    settings: Settings,
    layouts: GangLayouts,
    *,
    shared: bool,
) -> list[wire.LaunchOrder]:
    """The launch orders of offered tasks. What a rank saved before is looked up where it ran
    before.

    shared: the answer's `gangs` say where all ranks are, and the orders do not.
    """
    again = [
        (offer.job.id, offer.task.rank)
        for offer in offers
        if offer.task.attempt > 1 or offer.task.replaced
    ]
    kept = await store.checkpoints.find_newest_checkpoints(again) if again else {}
    orders = []
    for offer in offers:
        layout = layouts.find(offer)
        place = {} if layout is None else layout.place(offer, shared=shared)
        orders.append(
            _make_order(offer, settings, place, kept.get((offer.job.id, offer.task.rank)))
        )
    return orders


def _make_order(
    offer: TaskOffer, settings: Settings, place: dict[str, Any], kept: CheckpointRecord | None
) -> wire.LaunchOrder:
    job, spec, task = offer.job, offer.job.spec, offer.task
    return wire.LaunchOrder(
        key=task.key,
        attempt=task.attempt,
        name=job.name,
        queue=job.queue,
        project=job.project,
        argv=list(spec.argv),
        env=dict(spec.env),
        secrets=dict(offer.secrets),
        cwd=spec.cwd,
        shell=spec.shell,
        gpus=list(task.devices),
        memory_bytes=job.memory_bytes,
        world_size=job.tasks,
        ttl_seconds=task.lease_ttl_seconds,
        watch=settings.watch(job.queue, spec),
        image=spec.image,
        runtime=spec.runtime,
        pull=spec.pull,
        volumes=list(spec.volumes),
        pull_seconds=settings.number("image_pull_seconds", job.queue, spec),
        **place,
        **_hand_on(offer, settings, kept),
    )


def _hand_on(offer: TaskOffer, settings: Settings, kept: CheckpointRecord | None) -> dict[str, Any]:
    if kept is None:
        return {}
    found = wire.CheckpointOffer(
        number=kept.number, size=kept.size, sha256=kept.sha256, step=kept.step
    )
    inline = settings.number("checkpoint_inline_kb", offer.job.queue, offer.job.spec) * 1024
    return {"checkpoint": found, "inline_bytes": int(inline)}
