"""Several machines on one box: a network namespace each, joined by a bridge, with a cable that can
be pulled.

    switch (a namespace, too: bridge, controller, the test itself)     10.77.1.1
    ├── machine 2: eth0                                                10.77.1.2   and 10.77.2.2
    ├── machine 3: eth0                                                10.77.1.3   and 10.77.2.3
    └── …

The first network leads to the controller. The second is for the ranks among themselves, so that an
address that was advertised is another one than an agent would find by itself. No name or address of
it is seen outside of these namespaces; the file system and the process ids are the box's own, so
that a test can look at every rank. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, Controller, Host, clean_environment
from tests.waits import run_patiently, wait_until

CONTROL, DATA = "10.77.1", "10.77.2"
FIRST = 2  # the switch is 1
_FOLDER = Path("/var/run/netns")  # where iproute2 keeps the names
_IP = shutil.which("ip", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") or ""
_CLONE_NEWNET = 0x40000000


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = run_patiently([_IP, *words], capture_output=True, text=True, seconds=30)
    assert not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done


class Network:
    """The switch, and a namespace for each machine. Names are of this run alone."""

    def __init__(self, machines: int) -> None:
        self._prefix = f"hf{os.getpid()}-{secrets.token_hex(3)}-"
        self.switch = f"{self._prefix}switch"
        self.machines = [f"{self._prefix}{number}" for number in range(FIRST, FIRST + machines)]

    def make(self) -> None:
        """Make all of it. Skips the test where this machine cannot."""
        for namespace in (self.switch, *self.machines):
            made = _ip("netns", "add", namespace, check=False)
            if made.returncode:
                pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
            _ip("-n", namespace, "link", "set", "lo", "up")
        if (
            bridge := _ip("-n", self.switch, "link", "add", "bridge", "type", "bridge", check=False)
        ).returncode:
            pytest.skip(f"bridges cannot be made here: {bridge.stderr.strip()}")
        _ip("-n", self.switch, "address", "add", f"{CONTROL}.1/24", "dev", "bridge")
        _ip("-n", self.switch, "link", "set", "bridge", "up")
        for number, namespace in enumerate(self.machines, FIRST):
            pair = (
                "link",
                "add",
                f"port{number}",
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                namespace,
            )
            if (cable := _ip("-n", self.switch, *pair, check=False)).returncode:
                pytest.skip(f"pairs of veth cannot be made here: {cable.stderr.strip()}")
            for prefix in (CONTROL, DATA):
                _ip("-n", namespace, "address", "add", f"{prefix}.{number}/24", "dev", "eth0")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            _ip("-n", self.switch, "link", "set", f"port{number}", "master", "bridge", "up")

    def plug(self, number: int, state: str) -> None:
        """Pull the cable at the switch (`down`) or put it back (`up`): what is sent meanwhile goes
        nowhere, without a word."""
        _ip("-n", self.switch, "link", "set", f"port{number}", state)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread, and what it starts, stands at the switch."""
        with contextlib.ExitStack() as stack:
            home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, home)
            there = os.open(_FOLDER / self.switch, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, there)
            _set_namespace(there)
            stack.callback(_set_namespace, home)
            yield

    def remove(self) -> None:
        """Take all of it away. Raises AssertionError where a process was left in it."""
        left: dict[int, str] = {}
        for namespace in (*self.machines, self.switch):
            if (_FOLDER / namespace).exists():
                pids = _ip("netns", "pids", namespace, check=False).stdout.split()
                left |= {int(pid): namespace for pid in pids}
                _ip("netns", "delete", namespace)
        assert not left, f"processes left in namespaces: {left}"


def _set_namespace(file: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
    if libc.setns(file, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class BridgeController(Controller):
    """A controller that listens on the bridge."""

    @property
    def url(self) -> str:
        return f"http://{CONTROL}.1:{self.port}"

    def start(self, *, wait: bool = True) -> Controller:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.cli", "server", "--host", f"{CONTROL}.1", "--insecure-bind",
                 "--port", str(self.port), "--log-format", "json", "--token-file", str(self.token_file)],
                stdout=log, stderr=log, env=clean_environment(HOLDFAST_DSN=self.dsn, **self._environment),
            )  # fmt: skip
        if wait:
            self.port = wait_until(
                self._find_port, 60, what=f"the controller to serve: {self.log()}"
            )
        return self


class Machine(Host):
    """A host that is started as an operator does it, by `holdfast agent` in a namespace of its
    own."""

    def __init__(
        self, cluster: MachineCluster, number: int, namespace: str, *, advertise: bool, slots: int
    ) -> None:
        super().__init__(cluster.folder, f"machine{number}", {}, None)
        self.number = number
        self.address = f"{DATA if advertise else CONTROL}.{number}"
        self._token = cluster.client.create_token("join").secret
        words = [
            "--join",
            cluster.controller.url,
            "--name",
            self.name,
            "--state",
            str(self.state),
            "--gpus",
            "0",
        ]
        words += ["--slots", str(slots), *(["--advertise", self.address] if advertise else [])]
        agent = [sys.executable, "-P", "-m", "holdfast.cli", "agent", *words]
        self._argv = [
            _IP,
            "netns",
            "exec",
            namespace,
            *agent,
        ]  # `ip` becomes the guardian: the pid is the same

    def start(self) -> Host:
        with self.log_path.open("ab") as log:
            self.guardians.append(
                subprocess.Popen(
                    self._argv,
                    stdout=log,
                    stderr=log,
                    env=clean_environment(HOLDFAST_JOIN_TOKEN=self._token),
                    start_new_session=True,
                )
            )
        return self


class MachineCluster(Cluster):
    """A controller at the switch, and a host on every machine."""

    def __init__(self, folder: Path, dsn: str, network: Network) -> None:
        super().__init__(folder, dsn)
        self.network = network
        self.machines: dict[str, Machine] = {}

    def add_controller(self, *, wait: bool = True) -> Controller:
        self.controllers.append(
            BridgeController(self.folder, "controller0", self.dsn, self._environment)
        )
        return self.controllers[-1].start(wait=wait)

    def add_machines(self, slots: int) -> None:
        """Start all; the last is left to find out its address by itself."""
        for number, namespace in enumerate(self.network.machines, FIRST):
            advertise = namespace != self.network.machines[-1]
            machine = Machine(self, number, namespace, advertise=advertise, slots=slots)
            self.hosts[machine.name] = self.machines[machine.name] = machine
            machine.start()
        for name in self.machines:
            self.wait_host(name, seconds=90.0)

    def close(self) -> None:
        for machine in self.machines.values():
            self.network.plug(machine.number, "up")
        super().close()


def check_rights() -> None:
    """Skip where namespaces are out of reach."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if not _IP:
        pytest.skip("no iproute2 here (`make tools` installs it)")


@contextlib.contextmanager
def machines(folder: Path, dsn: str, count: int, slots: int) -> Iterator[MachineCluster]:
    """A cluster of `count` machines. The calling thread stands at the switch meanwhile."""
    check_rights()
    network = Network(count)
    with ExitStack() as stack:
        stack.callback(network.remove)
        network.make()
        stack.enter_context(network.entered())
        cluster = MachineCluster(folder, dsn, network)
        stack.callback(cluster.close)
        cluster.add_controller()
        cluster.add_machines(slots)
        yield cluster
