"""Count the hosts that a pool should have for the waiting jobs, by the offers that fit them.

- One host is rented for `jobs_per_host` waiting jobs. A gang needs all its hosts at once,
  beside busy ones, and counts as one job for each of its hosts.
DEMAND-2  A job goes to the pool whose cheapest fitting offer costs least, by the providers' own
          prices where they are known; jobs beyond the pool's bound go to the next pool. Hosts that
          start already are used first, so that a change of prices rents nothing twice.
DEMAND-3  A host whose offer a job does not fit is no supply for that job.
DEMAND-5  A job that has waited for `rent_after_seconds` fits on no host as it is, and counts for its
          part of a host beside the busy ones, however few jobs wait.
DEMAND-4  The work on a lost host counts as waiting for one of its offer, because it will wait as soon as
          its leases have ended.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.snapshot import PoolView, Waiting
from holdfast.core.placement.eligible import is_eligible
from holdfast.core.placement.types import QuotaLeft

Offers = frozenset[str]
Prices = Mapping[str, Mapping[str, float]]
NO_PRICES: Prices = MappingProxyType({})


class PoolDemand(msgspec.Struct, kw_only=True):
    """The waiting jobs that were given to one pool.

    jobs: number of plain jobs by the offers that fit them, a gang counted as several.
    gangs: hosts that the largest gang needs, by the offers that fit it. alone: hosts that the jobs fill
    which are worth hosts of their own (DEMAND-5), by the offers that fit them. queued: number of jobs.
    unfit: a sentence about jobs that no offer of the pool fits, or "". beyond: the pool could run
    jobs that the bounds of all pools leave without a host.
    """

    jobs: dict[Offers, float] = {}
    gangs: dict[Offers, int] = {}
    alone: dict[Offers, float] = {}
    queued: int = 0
    unfit: str = ""
    beyond: bool = False

    def add(self, option: "PoolOption", jobs: int) -> None:
        """Add `jobs` jobs that the pool could run so."""
        offers, hosts = option.offers, option.hosts
        self.jobs[offers] = self.jobs.get(offers, 0.0) + jobs * hosts
        if option.gang:
            self.gangs[offers] = max(self.gangs.get(offers, 0), hosts)
        if option.part:
            self.alone[offers] = self.alone.get(offers, 0.0) + jobs * option.part
        self.queued += jobs


class PoolOption(msgspec.Struct, frozen=True, kw_only=True):
    """A pool that can run jobs of a shape whole. offers: those that fit. hosts: how many one job needs.
    gang: it needs them at once. part: the part of a host's room that one job fills where the jobs are
    worth hosts of their own, else 0."""

    pool: str
    offers: Offers
    hosts: int
    gang: bool
    part: float = 0.0


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """The number of hosts of certain offers that a pool needs, serving or starting."""

    offers: Offers
    hosts: int


def count_ranks(offer: Offer, waiting: Waiting) -> int:
    """Return how many tasks of the shape one machine of the offer holds."""
    bounds = [
        have // want
        for have, want in (
            (offer.gpus, waiting.gpus),
            (offer.cpu_slots, waiting.cpu_slots),
            (offer.memory_bytes, waiting.memory_bytes if offer.memory_bytes else 0),
        )
        if want
    ]
    return min(bounds, default=waiting.tasks)


def could_run(spec: PoolSpec, waiting: Waiting) -> bool:
    """Return whether the pool's hosts take jobs of this queue and these labels."""
    return is_eligible(spec, waiting.queue, waiting.host_labels)


def split_demand(
    waiting: Sequence[Waiting],
    views: Sequence[PoolView],
    bounds: Mapping[str, int],
    prices: Prices = NO_PRICES,
) -> dict[str, PoolDemand]:
    """Give each waiting job to one pool (DEMAND-2). Jobs that no pool serves are left out.

    bounds: the most hosts that each pool may have now. Jobs beyond all bounds stay with the
    cheapest pool, and each pool that could run them notes it (`PoolDemand.beyond`). prices: as for
    `cycle.plan_fleet`.
    """
    demands = {view.spec.name: PoolDemand() for view in views}
    room = {view.spec.name: bounds[view.spec.name] * view.spec.jobs_per_host for view in views}
    coming = {view.spec.name: view.starting * view.spec.jobs_per_host for view in views}
    free = {
        view.spec.name: float(
            bounds[view.spec.name] - view.count_working([offer.name for offer in view.spec.offers])
        )
        for view in views
    }
    for each in sorted(waiting, key=lambda w: -w.oldest_seconds):
        left = each.jobs
        options = _order_pools(each, views, prices)
        steps = [(bound, option) for bound in (coming, room) for option in options]
        for bound, option in steps:
            name, hosts, part = option.pool, option.hosts, option.part
            most = min(bound[name], room[name]) // hosts
            if part:  # not where busy hosts leave no room for hosts of their own
                most = min(most, (free[name] + 1e-9) // part)
            taken = min(left, max(0, int(most)))
            if taken:
                coming[name] -= taken * hosts
                room[name] -= taken * hosts
                free[name] -= taken * part
                demands[name].add(option, taken)
                left -= taken
        if left and options:
            demands[options[0].pool].add(options[0], left)
            for option in options:
                demands[option.pool].beyond = True
        if not options:
            _say_unfit(each, views, demands)
    return demands


def cap_waiting(
    waiting: Sequence[Waiting],
    headroom: Mapping[str, int],
    quotas: Mapping[str, QuotaLeft] = MappingProxyType({}),
) -> tuple[Waiting, ...]:
    """Return the jobs that their queues' limits and their projects' quotas let run, the oldest
    first, because hosts for the others would stand idle. headroom: number of further jobs that each
    limited queue may run."""
    queues = dict(headroom)
    jobs = {name: left.jobs for name, left in quotas.items() if left.jobs is not None}
    gpus = {name: left.gpus for name, left in quotas.items() if left.gpus is not None}
    kept = []
    for each in sorted(waiting, key=lambda w: -w.oldest_seconds):
        queue, project, wide = each.queue, each.project, each.tasks * each.gpus
        bounds = [each.jobs, queues.get(queue, each.jobs), jobs.get(project, each.jobs)]
        if wide and project in gpus:
            bounds.append(gpus[project] // wide)
        run = max(0, min(bounds))
        for left, name, taken in (
            (queues, queue, run), (jobs, project, run), (gpus, project, run * wide)
        ):  # fmt: skip
            if name in left:
                left[name] -= taken
        if run:
            kept.append(msgspec.structs.replace(each, jobs=run))
    return tuple(kept)


def _order_pools(waiting: Waiting, views: Sequence[PoolView], prices: Prices) -> list[PoolOption]:
    """Return the pools that can run a job of the shape whole, the cheapest first."""
    found: list[tuple[float, str, PoolOption]] = []
    for view in views:
        spec = view.spec
        if view.paused is not None or not could_run(spec, waiting):
            continue
        ranks = {offer.name: count_ranks(offer, waiting) for offer in spec.offers}
        fitting = [offer for offer in spec.offers if ranks[offer.name] > 0]
        if not fitting:
            continue
        hosts = max(math.ceil(waiting.tasks / ranks[offer.name]) for offer in fitting)
        if hosts > spec.max:
            continue
        told = prices.get(spec.name, {})
        price = min(told.get(offer.name, offer.usd_per_hour) for offer in fitting)
        least = min(ranks[offer.name] for offer in fitting)
        gang = waiting.tasks > 1
        alone = spec.rents_alone(waiting.newest_seconds)
        option = PoolOption(
            pool=spec.name,
            offers=frozenset(offer.name for offer in fitting),
            hosts=hosts,
            gang=gang,
            part=0.0 if not alone else float(hosts) if gang else 1 / least,
        )
        found.append((price, spec.name, option))
    found.sort(key=lambda each: each[:2])
    return [option for _, _, option in found]


def _say_unfit(waiting: Waiting, views: Sequence[PoolView], demands: dict[str, PoolDemand]) -> None:
    for view in views:
        if view.paused is None and could_run(view.spec, waiting):
            needs = f"{waiting.tasks} × {waiting.gpus} GPUs" if waiting.gpus else "its resources"
            demands[
                view.spec.name
            ].unfit = (
                f"no offer of pool {view.spec.name} holds {needs} within {view.spec.max} hosts"
            )


def list_needs(view: PoolView, demand: PoolDemand) -> tuple[Need, ...]:
    """Return the needs of a pool, the one with the fewest fitting offers first. A pool that shrinks
    keeps these hosts, and one that grows spawns those of them that are missing."""
    spec = view.spec
    every = frozenset(offer.name for offer in spec.offers)
    busy = view.count_working(every)
    jobs = dict(demand.jobs)
    for host, count in view.shapes:
        if host.is_lost:
            offers = frozenset({host.offer}) & every or every
            jobs[offers] = jobs.get(offers, 0.0) + count * host.leases
    needs = []
    for offers in sorted({*jobs, every}, key=lambda o: (len(o), sorted(o))):
        within = [o for o in jobs if o <= offers]
        hosts = math.ceil(sum(jobs[o] for o in within) / spec.jobs_per_host - 1e-9)
        gang = max((demand.gangs.get(o, 0) for o in within), default=0)
        alone = math.ceil(sum(demand.alone.get(o, 0.0) for o in within) - 1e-9)
        if gang or alone:
            hosts = max(hosts, max(gang, alone) + view.count_working(offers))
        if offers == every:
            hosts = max(hosts, spec.min)
            if spec.buffer and (busy or demand.queued):
                hosts = max(hosts, busy + spec.buffer)
        needs.append(Need(offers=offers, hosts=min(hosts, spec.max)))
    return tuple(needs)
