"""Machines by the user's own scripts: JSON on stdin, JSON on stdout, an exit code for each kind of
failure. The contract is in docs/guides/providers-command.md."""

import os
import shlex
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer, Quote
from holdfast.providers.calls import run_program
from holdfast.providers.config import (
    TOKEN,
    GpuWord,
    ProviderConfig,
    agent_env,
    agent_words,
    check_order,
    hide,
    overlay,
)
from holdfast.providers.interface import NoCapacity, ProviderDown, Refused, Throttled

T = TypeVar("T")
Words = Annotated[list[str], Meta(min_length=1)]

# As in sysexits.h: EX_UNAVAILABLE, EX_TEMPFAIL, EX_CONFIG.
NO_CAPACITY, THROTTLED, REFUSED = 69, 75, 78
_MAX_BYTES = 8 << 20
_RETRY_SECONDS = 30.0


class CommandConfig(ProviderConfig, frozen=True, kw_only=True):
    """The config of a provider made of scripts. create, list, terminate, quote: the command line of
    each script. `quote` may be left out.

    env: variables added to the scripts' environment. settings: values passed to the scripts
    unchanged. state: the agent's folder on the machine. gpus: the number that the agent declares;
    "auto" asks the drivers.
    """

    create: Words
    list: Words
    terminate: Words
    quote: Words | None = None
    env: dict[str, str] = msgspec.field(default_factory=dict)
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    state: str = "/var/lib/holdfast/host"
    gpus: GpuWord = "auto"
    deadline_seconds: Annotated[float, Meta(gt=0, le=600)] = 300.0


class MachineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One machine as a script prints it; unknown keys are ignored."""

    ref: Annotated[str, Meta(min_length=1, max_length=1024)]
    installation: str
    intent: str
    state: MachineState = MachineState.STARTING
    pool: str = ""
    name: str = ""
    reason: str = ""
    lost: str = ""
    leaves_at: Annotated[datetime, Meta(tz=True)] | None = None
    usd_per_hour: float | None = None


class _Created(msgspec.Struct, frozen=True, kw_only=True):
    ref: Annotated[str, Meta(min_length=1, max_length=1024)]
    state: MachineState = MachineState.STARTING
    reason: str = ""
    usd_per_hour: float | None = None


class _Listed(msgspec.Struct, frozen=True, kw_only=True):
    machines: list[MachineAnswer]


class _Quoted(msgspec.Struct, frozen=True, kw_only=True):
    quotes: list[Quote]


class _Patience(msgspec.Struct, frozen=True, kw_only=True):
    retry_seconds: Annotated[float, Meta(ge=0)] = _RETRY_SECONDS


class CommandProvider:
    """Machines made and ended by the user's scripts; the module's docstring has the contract."""

    kind = "command"

    def __init__(self, config: CommandConfig, installation: str) -> None:
        self._config = config
        self._installation = installation

    @property
    def tells_prices(self) -> bool:
        """Return whether there is a script for prices (see `Provider`)."""
        return self._config.quote is not None

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        """Return the script's quotes (see `Provider`). Without a script the offers' own prices
        stand."""
        config = self._config
        if config.quote is None:
            return tuple(Quote(offer=o.name, usd_per_hour=o.usd_per_hour) for o in offers)
        told = {"offers": offers, "settings": config.settings}
        answer = await self._ask(config, "quote", config.quote, told, _Quoted)
        found = {quote.offer: quote for quote in answer.quotes}
        return tuple(found.get(offer.name, Quote(offer=offer.name)) for offer in offers)

    async def create(self, order: CreateOrder) -> Machine:
        """Make a machine (see `Provider`). The list script runs first, because few clouds have
        idempotency."""
        check_order(order, self._installation)
        config = overlay(self.kind, self._config, order.offer)
        for known in await self.list_machines():
            if known.intent == order.intent and known.state is not MachineState.GONE:
                return known
        env = agent_env(order)
        words = ["holdfast", *agent_words(order, state=config.state, gpus=config.gpus)]
        exports = [f"export {name}={shlex.quote(value)}" for name, value in sorted(env.items())]
        told = {
            "order": msgspec.structs.replace(order, env=env),
            "settings": config.settings,
            "agent_words": words,
            "agent_script": "\n".join(["#!/bin/sh", *exports, f"exec {shlex.join(words)}", ""]),
        }
        made = await self._ask(config, "create", config.create, told, _Created, order.env[TOKEN])
        return Machine(
            ref=made.ref,
            intent=order.intent,
            pool=order.pool,
            name=order.name,
            state=made.state,
            reason=made.reason,
            usd_per_hour=made.usd_per_hour,
        )

    async def list_machines(self) -> tuple[Machine, ...]:
        """Return the machines (see `Provider`). Machines of other installations are left out."""
        config = self._config
        answer = await self._ask(
            config, "list", config.list, {"settings": config.settings}, _Listed
        )
        return tuple(
            msgspec.convert(machine, Machine, from_attributes=True)
            for machine in answer.machines
            if machine.installation == self._installation
        )

    async def get_machine(self, ref: str) -> Machine | None:
        """Return one machine (see `Provider`)."""
        return next((m for m in await self.list_machines() if m.ref == ref), None)

    async def terminate(self, ref: str) -> None:
        """End a machine (see `Provider`). The script receives only machines that the list shows as
        this installation's."""
        machine = await self.get_machine(ref)
        if machine is None or machine.state is MachineState.GONE:
            return
        config = self._config
        told = {"machine": machine, "settings": config.settings}
        await self._ask(config, "terminate", config.terminate, told, None)

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""

    async def _ask(
        self,
        config: CommandConfig,
        action: str,
        argv: list[str],
        told: dict[str, Any],
        shape: type[T] | None,
        *secrets: str,
    ) -> T:
        """Run a script and read its answer. Raises the error that its exit code stands for."""
        ours = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        done = await run_program(
            argv,
            seconds=config.deadline_seconds,
            env=ours | config.env,
            input=msgspec.json.encode(
                {"action": action, "installation": self._installation} | told
            ),
            max_bytes=_MAX_BYTES,
        )
        said = hide(done.complaint, *secrets) or "it said nothing on stderr"
        what = f"{action} by {argv[0]}"
        if done.code == NO_CAPACITY and action == "create":
            raise NoCapacity(f"{what}: {said}")
        if done.code == THROTTLED:
            raise Throttled(f"{what}: {said}", retry_seconds=_read_patience(done.stdout))
        if done.code == REFUSED:
            raise Refused(f"{what}: {said}")
        if done.code != 0:
            raise ProviderDown(f"{what} ended with {done.code}: {said}")
        if shape is None:
            return None  # type: ignore[return-value]  # the caller of `terminate` reads nothing
        try:
            return msgspec.json.decode(done.stdout, type=shape)
        except msgspec.MsgspecError as error:
            raise ProviderDown(f"{what} printed what is no answer: {error}") from None


def _read_patience(printed: bytes) -> float:
    try:
        return msgspec.json.decode(printed, type=_Patience).retry_seconds
    except msgspec.MsgspecError:
        return _RETRY_SECONDS
