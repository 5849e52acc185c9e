"""Machines that are the boxes of an inventory, reached by the system's ssh. A box holds one machine.

    WORKDIR/lock       held while a call looks or acts, and by a process until it is on record
    WORKDIR/machine/   record (the order without its secrets), owner (installation and intent),
                       process (the line of /proc/PID/stat, and the boot's id), ending (there once
                       its end was ordered), agent.log, state/
    WORKDIR/last/      the machine before

The record is on the box, so every controller finds the machine. Scripts go over ssh's input, because
the words of a process can be read by its neighbours.
"""

import asyncio
import shlex
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer, Quote
from holdfast.providers.calls import ProgramEnd, run_program, within
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
from holdfast.providers.interface import NoCapacity, ProviderDown, Refused
from holdfast.providers.last_words import tell_end

_BUSY, _LOCKED, _REFUSED, _SSH_FAILED = 69, 75, 78, 255
_AT_ONCE = 16
_HEADER = "holdfast-box 1"
_STATE = "@STATE@"

# $1 of start_of is a line of /proc/PID/stat: what follows the name in brackets has the start as its
# 20th word. The whole is a function, so that nothing in it reads the rest of the script as its input.
_FUNCTIONS = r"""
start_of() { set -- ${1##*) }; echo "${20}"; }
alive() {
  { read -r then && read -r boot; } 2>/dev/null <machine/process || return 1
  [ "$boot" = "$(cat /proc/sys/kernel/random/boot_id)" ] || return 1
  pid=${then%% *}
  read -r now 2>/dev/null <"/proc/$pid/stat" || return 1
  case ${now##*) } in [ZXx]*) return 1 ;; esac
  [ "$(start_of "$then")" = "$(start_of "$now")" ]
}
enter() {
  cd "$workdir" 2>/dev/null || return 1
  exec 9>lock || exit 78
  flock -w "$patience" 9 || exit 75
}
show() {
  echo "holdfast-box 1"
  enter && [ -e machine/record ] || return 0
  echo "record $(cat machine/record)"
  alive && echo alive
  [ -e machine/ending ] && echo ending
  echo "log $(tail -c 2000 machine/agent.log 2>/dev/null | tail -n 1)"
}
end() {
  enter && [ "$(cat machine/owner 2>/dev/null)" = "$owner" ] || return 0
  if alive && [ ! -e machine/ending ]; then kill -TERM "$pid"; date +%s >machine/ending; fi
  give_up=$(($(cat machine/ending 2>/dev/null || echo 0) + grace))
  while alive; do
    [ "$(date +%s)" -lt "$give_up" ] || kill -KILL "$pid"
    sleep 0.1
  done
  rm -rf last && mv machine last
}
start() {
  mkdir -p "$workdir" && chmod 700 "$workdir" && enter || exit 78
  command -v "$python" >/dev/null || { echo "there is no program $python" >&2; exit 78; }
  if [ -e machine ]; then
    if alive; then exit 69; fi
    rm -rf last && mv machine last
  fi
  mkdir machine && echo "$record" >machine/record && echo "$owner" >machine/owner || exit 78
  launch </dev/null >machine/agent.log 2>&1
  exec 9>&-
  sleep 0.1; exec 9>lock; flock -w "$patience" 9 || exit 75
  [ -e machine/process ]
}
"""
# The process is on record before it becomes the agent; it holds the lock until then.
_LAUNCH = r"""
launch() {
  %(exports)s
  setsid sh -c '
    { read -r line </proc/$$/stat && echo "$line" && cat /proc/sys/kernel/random/boot_id; } >machine/new &&
    mv machine/new machine/process && exec "$@" 9>&-' sh %(words)s &
}
"""


class SshBox(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One box. A field that is None takes the pool's value. down: True to leave the box out, with
    any machine on it."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    address: Annotated[str, Meta(pattern=r"^[^-\s][^\s]*$")] = ""
    user: str | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    key: str | None = None
    workdir: str | None = None
    python: str | None = None
    down: bool = False


class SshConfig(ProviderConfig, frozen=True, kw_only=True):
    """The config of boxes reached by ssh; see docs/guides/providers-ssh.md.

    only: the names of the boxes that an offer uses; empty for all.
    """

    boxes: Annotated[list[SshBox], Meta(min_length=1, max_length=1000)]
    only: list[str] = msgspec.field(default_factory=list)
    user: str | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] = 22
    key: str | None = None
    workdir: str = "holdfast"
    python: str = "python3"
    gpus: GpuWord = "auto"
    grace_seconds: Annotated[int, Meta(ge=0, le=300)] = 10
    known_hosts: str | None = None
    host_keys: Literal["yes", "accept-new", "no"] = "yes"
    ssh: str = "ssh"
    ssh_options: list[str] = msgspec.field(default_factory=list)


class BoxRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a machine on its box."""

    installation: str
    intent: str
    pool: str
    name: str
    usd_per_hour: float
    created_at: datetime


class BoxView(NamedTuple):
    """The state of a box, as its script reported it. record: None where the box is free."""

    box: SshBox
    record: BoxRecord | None
    alive: bool
    ending: bool
    log: str


class SshProvider:
    """Machines that are boxes reached by ssh; see the module."""

    kind = "ssh"
    tells_prices = False

    def __init__(self, config: SshConfig, installation: str) -> None:
        self._config = config
        self._installation = installation
        names = [box.name for box in config.boxes]
        for name in config.only:
            if name not in names:
                raise Refused(f"`only` names the box {name!r}, which is not among {names}")
        if len(set(names)) < len(names):
            raise Refused("two boxes have one name")
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        """Return the offers (see `Provider`). An offer is available while one of its boxes is
        free."""
        views, _ = await self._look()
        quotes = []
        for offer in offers:
            only = overlay(self.kind, self._config, offer).only
            free = [v for v in views if not v.alive and (not only or v.box.name in only)]
            note = f"{len(free)} of its boxes are free"
            quotes.append(
                Quote(
                    offer=offer.name,
                    usd_per_hour=offer.usd_per_hour,
                    available=bool(free),
                    note=note,
                )
            )
        return tuple(quotes)

    async def create(self, order: CreateOrder) -> Machine:
        """Start an agent on a box (see `Provider`). The boxes are tried in the inventory's
        order."""
        check_order(order, self._installation)
        config = overlay(self.kind, self._config, order.offer)
        views, away = await self._look()
        for view in views:
            if view.record is not None and view.record.intent == order.intent:
                return _show(view, view.record)
        tried = [
            v.box for v in views if not v.alive and (not config.only or v.box.name in config.only)
        ]
        for box in tried:
            made = await self._start(config, box, order)
            if made is not None:
                return made
        also = "".join(f"; {error.message}" for error in away.values())
        raise NoCapacity(f"none of the boxes of offer {order.offer.name} is free{also}")

    async def list_machines(self) -> tuple[Machine, ...]:
        """Return the machines (see `Provider`). A box that cannot be read is `unknown`; where none
        can be read, the list fails."""
        views, away = await self._look()
        found = [
            _show(view, view.record)
            for view in views
            if view.record is not None and view.record.installation == self._installation
        ]
        return (*found, *(_hide(name, error) for name, error in away.items()))

    async def get_machine(self, ref: str) -> Machine | None:
        """Return one machine (see `Provider`)."""
        box, intent = self._read_ref(ref)
        async with within(self._config.deadline_seconds, f"the look at {ref}"):
            view = await self._look_at(box)
        record = view.record
        if record is None or (record.installation, record.intent) != (self._installation, intent):
            return None
        return _show(view, record)

    async def terminate(self, ref: str) -> None:
        """End a machine (see `Provider`): TERM, the grace, KILL, in one call to the box."""
        box, intent = self._read_ref(ref)
        grace, owner = self._config.grace_seconds, f"{self._installation} {intent}"
        script = _set(owner=owner, grace=str(grace)) + _FUNCTIONS + "end"
        done = await self._ask(box, script, self._config.deadline_seconds + grace)
        if done.code != 0:
            raise ProviderDown(_complain(box, "the end of the machine", done))

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""

    # ---- boxes

    def _read_ref(self, ref: str) -> tuple[SshBox, str]:
        name, _, intent = ref.partition(":")
        for box in self._config.boxes:
            if box.name == name:
                return box, intent
        raise Refused(
            f"the inventory has no box {name!r}; give it back before its machine is ended"
        )

    async def _look(self) -> tuple[list[BoxView], dict[str, ProviderDown]]:
        """Return the boxes that could be read, and why the others could not. Raises ProviderDown
        where none could."""
        boxes = [box for box in self._config.boxes if not box.down]
        async with (
            within(self._config.deadline_seconds, "the look at every box"),
            asyncio.TaskGroup() as group,
        ):
            looks = [group.create_task(self._try_look(box)) for box in boxes]
        found = [look.result() for look in looks]
        views = [view for view in found if isinstance(view, BoxView)]
        away = {
            box.name: error
            for box, error in zip(boxes, found, strict=True)
            if isinstance(error, ProviderDown)
        }
        if away and not views:
            first = next(iter(away.values()))
            raise ProviderDown(f"none of {len(boxes)} boxes can be read: {first.message}")
        return views, away

    async def _try_look(self, box: SshBox) -> BoxView | ProviderDown:
        try:
            return await self._look_at(box)
        except ProviderDown as error:
            return error

    async def _look_at(self, box: SshBox) -> BoxView:
        done = await self._ask(box, _FUNCTIONS + "show", self._config.deadline_seconds)
        lines = done.stdout.decode(errors="replace").splitlines()
        if done.code not in (0, 1) or _HEADER not in lines:
            raise ProviderDown(_complain(box, "a look", done))
        lines = lines[lines.index(_HEADER) + 1 :]
        found = dict(line.partition(" ")[::2] for line in lines)
        record = None
        if "record" in found:
            try:
                record = msgspec.json.decode(found["record"], type=BoxRecord)
            except msgspec.MsgspecError as error:
                raise ProviderDown(f"box {box.name} holds a record that is none: {error}") from None
        return BoxView(box, record, "alive" in found, "ending" in found, found.get("log", ""))

    async def _start(self, config: SshConfig, box: SshBox, order: CreateOrder) -> Machine | None:
        """Start the agent on one box. Returns None where another machine took the box meanwhile."""
        record = BoxRecord(
            installation=order.installation,
            intent=order.intent,
            pool=order.pool,
            name=order.name,
            usd_per_hour=order.offer.usd_per_hour,
            created_at=datetime.now(UTC),
        )
        python = box.python or config.python
        words = ["-P", "-m", "holdfast", *agent_words(order, state=_STATE, gpus=config.gpus)]
        exports = [f"export {k}={shlex.quote(v)}" for k, v in sorted(agent_env(order).items())]
        launch = _LAUNCH % {
            "exports": "\n  ".join(exports),
            "words": shlex.join([python, *words]).replace(_STATE, '"$PWD"/machine/state'),
        }
        text = msgspec.json.encode(record).decode()
        script = (
            _set(owner=f"{order.installation} {order.intent}", python=python, record=text)
            + _FUNCTIONS
            + launch
        )
        done = await self._ask(box, script + "start", config.deadline_seconds)
        if done.code in (_BUSY, _LOCKED):
            return None
        if done.code == _REFUSED:
            raise Refused(hide(_complain(box, "the start", done), order.env[TOKEN]))
        if done.code != 0:
            raise ProviderDown(hide(_complain(box, "the start", done), order.env[TOKEN]))
        return _show(BoxView(box, record, True, False, ""), record)

    async def _ask(self, box: SshBox, script: str, seconds: float) -> ProgramEnd:
        """Run a script on a box."""
        config = self._config
        # The script must not act after the caller has gone.
        patience = str(max(0, int(self._config.deadline_seconds) // 2))
        head = _set(workdir=box.workdir or config.workdir, patience=patience)
        whole = "main() {\n" + head + script + "\n}\nmain </dev/null\n"
        async with self._gate:
            return await run_program(
                [*self._ssh_words(box), "sh -s"], seconds=seconds, input=whole.encode()
            )

    def _ssh_words(self, box: SshBox) -> list[str]:
        config = self._config
        connect = max(1, min(10, int(config.deadline_seconds)))
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": str(connect),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "2",
            "StrictHostKeyChecking": config.host_keys,
            "ControlMaster": "no",
            "ControlPath": "none",
            "LogLevel": "ERROR",
        }
        if config.known_hosts:
            options["UserKnownHostsFile"] = config.known_hosts
        words = [config.ssh, "-T", "-p", str(box.port or config.port)]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        key, user = box.key or config.key, box.user or config.user
        words += ["-i", key, "-o", "IdentitiesOnly=yes"] if key else []
        words += ["-l", user] if user else []
        return [*words, *config.ssh_options, "--", box.address or box.name]


def _show(view: BoxView, record: BoxRecord) -> Machine:
    state, reason, lost = MachineState.RUNNING, "", ""
    if not view.alive:
        state, reason = MachineState.GONE, "ended as ordered"
        if not view.ending:
            reason, lost = tell_end(view.log), "node_failure"
    elif view.ending:
        state = MachineState.ENDING
    return Machine(
        ref=f"{view.box.name}:{record.intent}",
        intent=record.intent,
        pool=record.pool,
        name=record.name,
        state=state,
        reason=reason,
        lost=lost,
        usd_per_hour=record.usd_per_hour,
        created_at=record.created_at,
    )


def _hide(name: str, error: ProviderDown) -> Machine:
    """Return the unknown machine that a listing shows for a box that could not be read."""
    unknown = MachineState.UNKNOWN
    return Machine(
        ref=f"{name}:", intent="", pool="", name=name, state=unknown, reason=error.message
    )


def _set(**values: str) -> str:
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())


def _complain(box: SshBox, what: str, done: ProgramEnd) -> str:
    if done.code == _SSH_FAILED:
        return f"box {box.name} cannot be reached by ssh: {done.complaint}"
    return (
        f"{what} on box {box.name} ended with {done.code}: {done.complaint or 'nothing was said'}"
    )
