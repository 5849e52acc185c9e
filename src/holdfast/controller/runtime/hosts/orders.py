"""Launch orders: a job's spec, its place, and for a gang the peers and the rendezvous.

The places of a gang's ranks are worked out once for all its hosts, and sent once in each answer,
because sending them with every order would make a start cost the square of the number of ranks.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.controller.runtime.settings import Settings
from holdfast.core.calls.executors import find_app, is_ahead
from holdfast.core.records import CheckpointRecord, shared_fields
from holdfast.moves.values import GangSeat, OfferedJob, TaskOffer
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire import agent as wire
from holdfast.wire.data.outputs import OutputsOrder

MAX_LAYOUTS = 64


class GangLayout:
    """The ranks of one attempt of a gang, host by host. Hosts are ordered by their first ranks, as
    torchrun numbers them."""

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

    def place(self, offer: TaskOffer) -> dict[str, Any]:
        """Return the fields of an order that say which place a rank has in its gang."""
        first, host_id = self.seats[0], offer.task.host_id
        mine = self.hosts[host_id]
        one_each = len(mine) > 1 and all(len(seat.devices) == 1 for seat in mine)
        return {
            "local_rank": [seat.rank for seat in mine].index(offer.task.key.rank),
            "local_world_size": len(mine),
            "visible_gpus": [seat.devices[0] for seat in mine] if one_each else [],
            "group_rank": self.numbers[host_id],
            "group_world_size": len(self.hosts),
            "falls_together": len(self.hosts) == 1 and not offer.job.spec.supervised,
            "master_addr": first.address,
            "master_port": first.port or 0,
        }


class GangLayouts:
    """The layouts of gangs that are starting, kept for the next host's answer."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], GangLayout] = {}

    def find(self, offer: TaskOffer) -> GangLayout | None:
        """Return the layout of an offer's gang, None for a job of one task."""
        if not offer.seats:
            return None
        key = (offer.task.key.job_id, offer.task.key.epoch)
        kept = self._kept.get(key)
        if kept is None or (kept.seats is not offer.seats and kept.seats != offer.seats):
            self._kept.pop(key, None)
            while len(self._kept) >= MAX_LAYOUTS:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[key] = GangLayout(*key, offer.seats)
        kept.seats = offer.seats  # equal; the next host of the batch has this very tuple
        return kept

    def list_gangs(self, offers: Iterable[TaskOffer]) -> list[wire.Gang]:
        """Return the gangs of `offers`, each once."""
        layouts = (self.find(offer) for offer in offers)
        return list({id(layout): layout.gang for layout in layouts if layout}.values())


async def make_orders(
    store: PostgresStore, offers: Sequence[TaskOffer], settings: Settings, layouts: GangLayouts
) -> list[wire.LaunchOrder]:
    """Return the launch orders of offered tasks, with the newest checkpoint of each rank that ran
    before. Plain tasks of one job's spec share an order (`LaunchOrder.also`)."""
    again = [
        (o.task.key.job_id, o.task.key.rank)
        for o in offers
        if o.saved and (o.task.attempt > 1 or o.task.replaced)
    ]
    kept = await store.checkpoints.find_newest_checkpoints(again) if again else {}
    orders: list[wire.LaunchOrder] = []
    first: dict[int, wire.LaunchOrder] = {}
    for offer in offers:
        task = offer.task
        checkpoint = kept.get((task.key.job_id, task.key.rank)) if kept else None
        plain = not (offer.seats or offer.secrets) and checkpoint is None
        if plain and (alike := first.get(id(offer.job))) is not None:
            devices, ttl_seconds = list(task.devices), task.lease_ttl_seconds
            alike.also.append(wire.AlikeTask(task.key, task.attempt, devices, ttl_seconds))
            continue
        layout = layouts.find(offer)
        place = {} if layout is None else layout.place(offer)
        orders.append(_make_order(offer, settings, place, checkpoint))
        if plain:
            first[id(offer.job)] = orders[-1]
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
        fresh_workdir=spec.fresh_workdir,
        fail_on=spec.fail_on or "",
        shell=spec.shell,
        stdin=spec.stdin or "",
        terminal=spec.terminal,
        code=spec.code,
        setup=spec.setup,
        setup_files=list(spec.setup_files),
        python=spec.python,
        setup_seconds=settings.number("setup_seconds", job.queue, spec),
        gpus=list(task.devices),
        memory_bytes=job.memory_bytes,
        world_size=job.tasks,
        ttl_seconds=task.lease_ttl_seconds,
        watch=settings.watch(job.queue, spec),
        image=spec.image,
        runtime=spec.runtime,
        pull=spec.pull,
        volumes=list(spec.volumes),
        caches=list(spec.caches),
        mounts=list(spec.mounts),
        outputs=_order_outputs(job, settings),
        pull_seconds=settings.number("image_pull_seconds", job.queue, spec),
        **_describe_executor(job, settings),
        **place,
        **_hand_on(offer, settings, kept),
    )


def _describe_executor(job: OfferedJob, settings: Settings) -> dict[str, Any]:
    """Return the fields of an order that starts an executor; an empty dict for another job."""
    if not job.spec.executor:
        return {}
    return {
        "executor": job.spec.executor,
        "app": find_app(job.spec),
        "limits": settings.executor_limits(job.queue, ahead=is_ahead(job.spec)),
    }


def _order_outputs(job: OfferedJob, settings: Settings) -> OutputsOrder | None:
    if not job.spec.outputs:
        return None
    most = settings.number("outputs_max_mb", job.queue, job.spec) * 1024 * 1024
    return OutputsOrder(paths=list(job.spec.outputs), max_bytes=int(most))


def _hand_on(offer: TaskOffer, settings: Settings, kept: CheckpointRecord | None) -> dict[str, Any]:
    if kept is None:
        return {}
    found = wire.CheckpointOffer(**shared_fields(kept, wire.CheckpointOffer))
    inline = settings.number("checkpoint_inline_kb", offer.job.queue, offer.job.spec) * 1024
    return {"checkpoint": found, "inline_bytes": int(inline)}
