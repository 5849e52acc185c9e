"""Chooses where the ranks of a start meet."""

import random
from collections.abc import Sequence

from holdfast.supervisor.rosters.hosts import Host

RENDEZVOUS_PORTS = range(29500, 30500)


def find_rendezvous(hosts: Sequence[Host], restarts: int = 0) -> dict[str, str]:
    """Wait until the first host is connected to the script, and choose it as the place where
    torch's ranks meet. Raises HostLost where that host is lost first.

    Returns the variables of PyTorch's `env://`. That host chooses a port for each start, at random
    among those that are free there, because another run may share the machine, and a rank of the
    start before may still hold its port. restarts: the number of earlier starts, which ranks
    find in torchrun's variable for it.
    """
    hosts[0].hostname().result()
    facts, port = hosts[0].facts, hosts[0].find_port(RENDEZVOUS_PORTS).result()
    return {
        "MASTER_ADDR": facts.address if facts is not None else "127.0.0.1",
        "MASTER_PORT": str(port or random.choice(RENDEZVOUS_PORTS)),
        "TORCHELASTIC_RESTART_COUNT": str(restarts),
    }
