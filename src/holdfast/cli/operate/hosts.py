"""`hosts`: the list of hosts, and the actions on them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.options import read_seconds
from holdfast.cli.output import age, paint, table, table_and_texts
from holdfast.core.words import say_bytes
from holdfast.errors import ValidationError
from holdfast.wire.states import tell_state

if TYPE_CHECKING:
    from holdfast.wire.api import HostView

_MEMORY_LIMITS = {"group": "kernel", "watch": "watch", "": "-"}
_VERBS = {
    "undrain": "Give drained hosts work again.",
    "quarantine": "Give suspect hosts no new work until they are released.",
    "release": "Give quarantined hosts work again.",
    "terminate": "Give up hosts whose machines are gone; their jobs are requeued at once.",
    "revoke": "Refuse the keys of hosts; each needs a new join token, and its tasks end.",
}


@click.group(invoke_without_command=True)
@click.option("--dead", is_flag=True, help="Only hosts that died while they held work.")
@click.option("--all", "include_terminated", is_flag=True, help="Also terminated hosts.")
@click.pass_context
@talks
def hosts(io: CommandIO, context: click.Context, dead: bool, include_terminated: bool) -> None:
    """List hosts and their slots; drain, quarantine or end them.

    MEMORY is what ends a task over its --memory: the kernel, by a control group, or the agent's
    watch. A host in state `aside` cannot start anything now, and tries itself.

    \b
    Examples:
      holdfast hosts
      holdfast hosts --dead --json
      holdfast hosts drain gpu-box-7 --deadline 1h --reason "new driver"
    """
    if context.invoked_subcommand is not None:
        return
    with io.client() as client:
        rows = client.hosts(dead=dead, include_terminated=include_terminated)
    nothing = (
        "no dead hosts"
        if dead
        else "no hosts. Add one with `holdfast agent --join URL --token TOKEN`"
    )
    io.show(rows, hosts_table(rows) if rows else nothing)


@hosts.command()
@click.argument("host")
@click.option("--hours", is_flag=True, help="Hours of the last 90 days instead of minutes.")
@click.option("--last", metavar="TIME", default="1h", help="How far back. [default: 1h]")
@talks
def telemetry(io: CommandIO, host: str, hours: bool, last: str) -> None:
    """Show the GPUs of a host: memory, utilisation and temperature, over time.

    \b
    Examples:
      holdfast hosts telemetry gpu-box-7
      holdfast hosts telemetry gpu-box-7 --hours --last 7d --json
    """
    seconds = int(read_seconds("--last", last))
    with io.client() as client:
        found = client.host_telemetry(host, step="hour" if hours else "minute", seconds=seconds)
    header = ("AT", "GPU", "BUSY", "PEAK", "MEMORY", "OF", "HOTTEST")
    lines = [
        (
            f"{p.at:%m-%d %H:%M}",
            str(p.gpu),
            _number(p.utilisation_percent, " %"),
            _number(p.utilisation_max, " %"),
            _bytes(p.memory_used_max_bytes),
            _bytes(p.memory_total_bytes),
            _number(p.temperature_max_celsius, " °C"),
        )
        for p in found.points
    ]
    io.show(found, table(header, lines) if lines else f"{host} told of no GPUs in that time")


def _bytes(value: int | None) -> str:
    return "?" if value is None else say_bytes(value)


def _number(value: float | None, unit: str) -> str:
    return "?" if value is None else f"{value:.0f}{unit}"


@hosts.command()
@click.argument("host")
@talks
def checks(io: CommandIO, host: str) -> None:
    """Show the last health checks of a host, newest first.

    A host of a pool is checked before it serves; every host every `health_check_seconds`, and after
    tasks failed on it.

    \b
    Examples:
      holdfast hosts checks gpu-box-7
      holdfast hosts checks gpu-box-7 --json
    """
    with io.client() as client:
        rows = client.host_checks(host)
    lines = [(age(c.at), c.kind, c.verdict.value, c.message) for c in rows]
    drawn = table(("AGE", "KIND", "VERDICT", "MESSAGE"), lines, elastic=3)
    io.show(rows, drawn if rows else f"{host} was not checked yet")


def hosts_table(rows: Sequence[HostView]) -> str:
    """Draw the table of `hosts`: with pools, offers and prices where a pool rents some, and with how
    `--memory` is kept where it is not by the kernel everywhere."""
    rented = any(h.offer is not None for h in rows)
    money = ("POOL", "OFFER", "$/H") if rented else ()
    watched = any(h.memory_limits == "watch" for h in rows)
    memory = ("MEMORY",) if watched else ()
    loaded = any(h.models for h in rows)
    models = ("MODELS",) if loaded else ()
    return table_and_texts(
        ("ID", "NAME", "STATE", "CPU", "GPU", *memory, "SEEN", "QUEUES", *models, *money),
        [
            (
                (
                    h.id,
                    h.name,
                    tell_state(h).word + ("*" if h.probe == "scripted" else ""),
                    _slots(h, "cpu"),
                    _slots(h, "gpu"),
                    *((_MEMORY_LIMITS.get(h.memory_limits, h.memory_limits),) if watched else ()),
                    age(h.heartbeat_at),
                    ",".join(h.queues) or "all",
                    *((",".join(h.models) or "-",) if loaded else ()),
                    *(_say_rental(h) if rented else ()),
                ),
                tell_state(h).sentence,
            )
            for h in rows
        ],
        "REASON",
    )


def _say_rental(host: HostView) -> tuple[str, str, str]:
    if host.offer is None:
        return host.pool or "-", "-", "-"
    return host.pool, host.offer, f"{host.usd_per_hour or 0.0:.2f}"


def _slots(host: HostView, kind: str) -> str:
    slots = host.slots.get(kind, {})
    return f"{slots.get('busy', 0)}/{slots.get('total', 0)}"


def _act(io: CommandIO, names: Sequence[str], verb: str, reason: str, **how: Any) -> None:
    with io.client() as client:
        done = [client.act_on_host(name, verb, reason, **how) for name in names]
    told = [(h.name, tell_state(h)) for h in done]
    text = "\n".join(f"{name}  {paint(at.word)}  {at.sentence}".rstrip() for name, at in told)
    io.show(done[0] if len(done) == 1 else done, text)


@hosts.command()
@click.argument("names", metavar="HOST...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept with the host.")
@click.option("--deadline", metavar="TIME", help="How long running tasks may go on, as 1h.")
@click.option("--hard", is_flag=True, help="Stop running tasks now, at no charge to their jobs.")
@click.option("--scale-down", is_flag=True, help="The host leaves: stop its tasks in their grace.")
@talks
def drain(
    io: CommandIO,
    names: Sequence[str],
    reason: str,
    deadline: str | None,
    hard: bool,
    scale_down: bool,
) -> None:
    """Give hosts no new work, and let their running work end.

    At --deadline the tasks that still run are stopped (TERM, grace, KILL), and their jobs, whole
    gangs included, are queued again at no charge. A second drain changes the deadline. --scale-down
    stops them now, or at the deadline, and names the reason. HOST is a name or an id.

    \b
    Examples:
      holdfast hosts drain gpu-box-7
      holdfast hosts drain gpu-box-7 gpu-box-8 --deadline 1h --reason "new driver"
      holdfast hosts drain rented-3 --scale-down
      holdfast hosts undrain gpu-box-7
    """
    if deadline is not None and hard:
        raise click.UsageError(
            "--hard stops running tasks now, --deadline later; give one of the two"
        )
    if scale_down and hard:
        raise click.UsageError(
            "--scale-down stops running tasks, with their grace; leave --hard out"
        )
    seconds = None
    if deadline is not None:
        seconds = read_seconds("--deadline", deadline, "deadline_seconds")
        if seconds <= 0:
            raise ValidationError(
                "--deadline must be later than now; --hard stops running tasks now",
                field="deadline_seconds",
            )
    how = {"hard": hard, "deadline_seconds": seconds, "scale_down": scale_down}
    _act(io, names, "drain", reason, **how)


def _make_action(verb: str, sentence: str) -> click.Command:
    @click.argument("names", metavar="HOST...", nargs=-1, required=True)
    @click.option("--reason", default="", help="Kept with the host.")
    @click.option("--hard", is_flag=True, help="Stop running tasks, at no charge to their jobs.")
    @talks
    def act(io: CommandIO, names: Sequence[str], reason: str, hard: bool) -> None:
        _act(io, names, verb, reason, hard=hard)

    example = f"\b\nExample:\n  holdfast hosts {verb} gpu-box-7"
    act.__doc__ = f"{sentence}\n\nHOST is a name or an id.\n\n{example}"
    return click.command(verb)(act)


for _verb, _sentence in _VERBS.items():
    hosts.add_command(_make_action(_verb, _sentence))
