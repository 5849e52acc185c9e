"""The first check of a new host of a pool, before it gets work: the facts that its agent registered
are compared with the offer that was rented. Pure.

Checks that run on the host have verdicts of their own, which come on top of this one.
"""

from collections.abc import Sequence

import msgspec

from holdfast.core.fleet.instances import Offer
from holdfast.core.gpus import Gpu

MEMORY_SHARE = 0.9
"""The share of the rented memory that a machine must show, because firmware and the kernel keep a
part of it."""


class PreflightResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a host's checks: "pending", "ok", "warn" or "fail", and its sentence."""

    result: str
    reason: str = ""


def check_facts(
    offer: Offer | None, *, cpu_slots: int, memory_bytes: int, gpus: Sequence[Gpu]
) -> PreflightResult:
    """Compare the facts that a host registered with the offer under which it was rented.

    offer: None where the pool has no offer of this name any more; the host then passes.
    """
    if offer is None:
        return PreflightResult(result="ok", reason="its offer is not in the pool any more")
    if len(gpus) < offer.gpus:
        return PreflightResult(
            result="fail",
            reason=f"offer {offer.name} has {offer.gpus} GPUs, and the host shows {len(gpus)}",
        )
    small = [
        gpu.index for gpu in gpus if 0 < gpu.memory_bytes < offer.gpu_memory_bytes * MEMORY_SHARE
    ]
    if offer.gpus and small:
        return PreflightResult(
            result="fail",
            reason=f"GPU {small[0]} has less memory than the {offer.gpu_memory_bytes >> 20} MiB of "
            f"offer {offer.name}",
        )
    if cpu_slots < offer.cpu_slots:
        return PreflightResult(
            result="fail",
            reason=f"offer {offer.name} has {offer.cpu_slots} CPU slots, and the host serves "
            f"{cpu_slots}; start its agent with --slots {offer.cpu_slots}",
        )
    if 0 < memory_bytes < offer.memory_bytes * MEMORY_SHARE:
        return PreflightResult(
            result="fail",
            reason=f"offer {offer.name} has {offer.memory_bytes >> 20} MiB of memory, and the host "
            f"shows {memory_bytes >> 20} MiB",
        )
    return PreflightResult(result="ok", reason="it shows what was rented")
