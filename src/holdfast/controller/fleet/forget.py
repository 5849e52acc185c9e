"""Forgetting a pool on an operator's word, where its provider no longer confirms the ends of
machines."""

import logging

from holdfast.controller.runtime.context import Controller
from holdfast.core.fleet.records import PoolRecord
from holdfast.core.states import HostState, InstanceEvent

log = logging.getLogger("holdfast.fleet")


async def forget_pool(controller: Controller, pool: PoolRecord, word: str) -> None:
    """Record every machine of a deleted pool as gone, queue its work again, and forget the pool.

    An operator's word is evidence, as for `hosts terminate` (LEASE-3). A machine that is alive
    after all finds its host terminated, so none of its reports count, and a provider that answers
    again lists it under no pool. The log names each such machine.
    """
    store = controller.store
    reason = f"its pool {pool.name} was {word}, and no provider confirmed its end"
    for found in await store.fleet.list_instances(pool.name):
        log.warning("pool %s: %s (%s): %s", pool.name, found.name, found.ref or "-", reason)
        if found.host_state is not HostState.TERMINATED:
            await store.hosts.move_host(found.host_id, "terminate", reason)
        else:
            await store.fleet.want_end(found.host_id, reason)
        await store.fleet.note_gone(found.host_id, InstanceEvent.VANISH, reason)
    if await store.fleet.forget_pool(pool.name):
        controller.metrics.fleet.forget(pool.name)
    controller.unheard.pop(pool.name, None)
    controller.guard.forget()
    controller.poke("drain", "members", "admit")
