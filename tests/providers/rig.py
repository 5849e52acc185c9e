"""What the suite of all providers needs of each: a provider, its machines' environments, its
failures."""

from __future__ import annotations

import contextlib
import itertools
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer
from holdfast.core.ids import make_id
from holdfast.providers.interface import Provider
from holdfast.providers.locate import open_provider

ROOT = Path(__file__).parents[2]
SECRET = "hfj_a-join-token-that-nobody-may-read"
_count = itertools.count(1)


def make_order(
    installation: str = "here", *, offer: Offer | None = None, **env: str
) -> CreateOrder:
    """An order with an intent of its own."""
    intent = make_id(time.time_ns() // 1_000_000, next(_count))
    return CreateOrder(
        installation=installation,
        pool="spot",
        intent=intent,
        name=f"hf-{installation}-spot-{intent}",
        offer=offer or Offer(name="small", cpu_slots=1),
        env={
            "HOLDFAST_URL": "http://127.0.0.1:9",
            "HOLDFAST_JOIN_TOKEN": SECRET,
            "HOLDFAST_POOL": "spot",
            "HOLDFAST_SELF_DESTRUCT_SECONDS": "600",
            "HOLDFAST_QUEUES": "gpu,fast",
            "HOLDFAST_LABELS": "rack=7,zone=a b",
            **env,
        },
    )


def write_stub(folder: Path) -> Path:
    """A program in the place of the interpreter: it writes down its environment and words, and
    waits for TERM."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "stub-python"
    path.write_text(
        f'#!/bin/sh\necho start >>"{folder}/$HOLDFAST_INTENT.starts"\n'
        f'env -0 >"{folder}/$HOLDFAST_INTENT.new"; echo "$@" >"{folder}/$HOLDFAST_INTENT.words"\n'
        f'mv "{folder}/$HOLDFAST_INTENT.new" "{folder}/$HOLDFAST_INTENT.env"\n'
        "exec sleep 1000\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def read_env(path: Path) -> dict[str, str]:
    """What `write_stub` wrote; empty while it is not there."""
    if not path.exists():
        return {}
    words = path.read_text().split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def count_starts(folder: Path, intent: str) -> int:
    """How often `write_stub`'s program was started for an intent."""
    path = folder / f"{intent}.starts"
    return len(path.read_text().splitlines()) if path.exists() else 0


class Rig(Protocol):
    """One provider under test."""

    kind: str
    config: dict[str, Any]
    offer: Offer
    bad_config: dict[str, Any]
    """A config of an offer that the provider cannot make."""

    def env_of(self, machine: Machine) -> Mapping[str, str]:
        """The environment that the agent of this machine was started with; empty before."""

    def count_starts(self, intent: str) -> int:
        """How many agents were started for an intent until now."""

    def hang(self, order: CreateOrder) -> contextlib.AbstractContextManager[None]:
        """Have this order's creation hang."""

    def leftovers(self) -> list[str]:
        """What is there and should not be, after every machine was ended."""


def open_rig(rig: Rig, installation: str = "here", **config: Any) -> Provider:
    """A provider of this rig."""
    return open_provider(rig.kind, rig.config | config, installation)


def of_intent(machines: tuple[Machine, ...], intent: str) -> list[Machine]:
    """The living machines of one intent."""
    return [m for m in machines if m.intent == intent and m.state is not MachineState.GONE]


class StubRig:
    """What rigs share whose agents are `write_stub`'s programs, and whose creation hangs while the
    file `hanging` is there."""

    def __init__(self, folder: Path) -> None:
        self._stubs, self._hanging = folder / "stubs", folder / "hanging"

    def env_of(self, machine: Machine) -> Mapping[str, str]:
        return read_env(self._stubs / f"{machine.intent}.env")

    def count_starts(self, intent: str) -> int:
        return count_starts(self._stubs, intent)

    @contextlib.contextmanager
    def hang(self, order: CreateOrder) -> Iterator[None]:
        self._hanging.touch()
        yield
        self._hanging.unlink()

    def leftovers(self) -> list[str]:
        return []


class LocalRig(StubRig):
    """Stubs as agents of this machine."""

    kind = "local"
    offer = Offer(name="small", gpus=2, cpu_slots=3)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder / "machines"
        stub = write_stub(self._stubs)
        self.config: dict[str, Any] = {"folder": str(self._folder), "python": str(stub)}
        self.bad_config: dict[str, Any] = {"python": "/nowhere/python"}

    @contextlib.contextmanager
    def hang(self, order: CreateOrder) -> Iterator[None]:
        import fcntl

        folder = self._folder / "here" / order.intent
        folder.mkdir(parents=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        lock.close()


class CommandRig(StubRig):
    """The toys of examples/fleet."""

    kind = "command"
    offer = Offer(name="toy")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        toy = [sys.executable, str(ROOT / "examples" / "fleet" / "toy.py")]
        create = ["sh", "-c", f'test -e {self._hanging} && sleep 600; exec "$@"', "sh", *toy]
        self.config: dict[str, Any] = {
            "create": create,
            "list": toy,
            "terminate": toy,
            "quote": toy,
            "env": {"TOY_FOLDER": str(folder / "toys"), "TOY_AGENT": str(write_stub(self._stubs))},
        }
        self.bad_config: dict[str, Any] = {"settings": {"size": "large"}}
