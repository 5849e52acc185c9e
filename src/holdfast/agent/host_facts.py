"""Read the facts with which a host registers."""

import asyncio
import importlib
import logging
import os
import socket
from pathlib import Path

from holdfast.agent.config import AgentConfig
from holdfast.agent.data.mounts import list_labels
from holdfast.agent.guardian_env import MemoryLimits
from holdfast.agent.offload import run_aside
from holdfast.agent.probes import Probe
from holdfast.agent.probes.real import RealProbe
from holdfast.agent.probes.visible import declare_visible
from holdfast.core.gpus import Gpu
from holdfast.core.sessions.rights import CLOSED_LABEL
from holdfast.http.addresses import read_addresses
from holdfast.version import VERSION
from holdfast.wire.agent import HostFacts

log = logging.getLogger("holdfast.agent")


def make_probe(config: AgentConfig) -> Probe:
    """Return the probe that the config names."""
    if config.probe == "real":
        return RealProbe()
    _, module, script = config.probe.split(":", 2)
    probe: Probe = importlib.import_module(module).open_probe(script)
    return probe


class FactsReader:
    """Reads the facts of this host anew each time, because devices come and go."""

    def __init__(
        self, config: AgentConfig, probe: Probe, memory_limits: MemoryLimits = "watch"
    ) -> None:
        self._config = config
        self._probe = probe
        self._memory_limits = memory_limits

    async def read(self) -> HostFacts:
        """Return all facts of this host."""
        return await read_host_facts(self._config, self._probe, self._memory_limits)

    async def find_gpus(self) -> list[Gpu]:
        """Return the devices of this host."""
        return (await self.read()).gpus


async def read_host_facts(
    config: AgentConfig, probe: Probe, memory_limits: MemoryLimits = "watch"
) -> HostFacts:
    """Ask drivers and kernel for the facts; the operator's declarations take precedence."""
    if isinstance(config.gpus, int):
        visible = declare_visible(config.gpus, os.environ)
        gpus = visible.gpus
        if visible.said:
            log.warning(visible.said)
    elif isinstance(config.gpus, list):
        gpus = list(config.gpus)
    else:
        gpus = await probe.find_gpus()
    return HostFacts(
        name=config.host_name,
        cpu_slots=config.cpu_slots,
        memory_bytes=read_memory_bytes() if config.memory_bytes is None else config.memory_bytes,
        gpus=gpus,
        queues=config.queues,
        labels={**config.host_labels, **list_labels(config.mounts), **_say_sessions(config)},
        pool=config.pool,
        address=config.advertise or await _look_up_address(config.url),
        version=VERSION,
        probe=probe.kind,
        memory_limits=memory_limits,
        boot_id=_read_boot_id(),
    )


def _say_sessions(config: AgentConfig) -> dict[str, str]:
    return {} if config.sessions else dict((CLOSED_LABEL,))


def _read_boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


async def _look_up_address(url: str) -> str:
    looking = run_aside(lambda: find_address(url))  # a name server may be slow
    await asyncio.wait([looking], timeout=3.0)
    return looking.result() if looking.done() else "127.0.0.1"


def read_memory_bytes() -> int:
    """Return the bytes of memory that this host may use: the machine's, or its control group's
    limit if that is lower."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                total = min(total, int(file.read()))
        except (OSError, ValueError):
            continue
    return total


def find_address(url: str) -> str:
    """Return this machine's address on the way to the controller, of the same family (IPv4 or
    IPv6), because the peers of a gang most likely reach it by that address, too."""
    controller = read_addresses(url)[0]
    try:
        found = socket.getaddrinfo(controller.host, controller.port, type=socket.SOCK_DGRAM)
    except OSError:
        found = []
    for family, kind, protocol, _, where in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)  # sends nothing
                address: str = probe.getsockname()[0]
                return address.partition("%")[0]  # without the interface's name
        except OSError:
            continue
    log.warning(
        f"no way to the controller at {url} was found, so other hosts of a gang are told 127.0.0.1; "
        "name this host's address with --advertise"
    )
    return "127.0.0.1"
