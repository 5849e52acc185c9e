"""`hosts` and what can be done to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.face import Face, age, paint, table, talks

if TYPE_CHECKING:
    from holdfast.wire.api import HostView

_VERBS = {
    "drain": "Give the host nothing new; what runs there ends by itself, or is stopped and requeued with --hard.",
    "undrain": "Give a drained host work again.",
    "quarantine": "Give a suspect host nothing new until it is released.",
    "release": "Let a quarantined host back.",
    "terminate": "Give the host up: what it held is requeued at once. For a machine that is gone.",
}


@click.group(invoke_without_command=True)
@click.option("--dead", is_flag=True, help="Only hosts flagged dead while they held work.")
@click.option("--all", "include_terminated", is_flag=True, help="Terminated ones too.")
@click.pass_context
@talks
def hosts(face: Face, context: click.Context, dead: bool, include_terminated: bool) -> None:
    """List hosts and their slots; drain, quarantine or end them.

    \b
    Examples:
      holdfast hosts
      holdfast hosts --dead --json
      holdfast hosts drain gpu-box-7 --reason "new driver"
    """
    if context.invoked_subcommand is not None:
        return
    with face.client() as client:
        rows = client.hosts(dead=dead, include_terminated=include_terminated)
    nothing = "no dead hosts" if dead else "no hosts. Add one with `holdfast agent --join URL --token TOKEN`"
    face.show(rows, hosts_table(rows) if rows else nothing)


def hosts_table(rows: Sequence[HostView]) -> str:
    """The table of `hosts`."""
    return table(
        ("ID", "NAME", "STATE", "CPU", "GPU", "SEEN", "QUEUES", "REASON"),
        [
            (
                h.id,
                h.name,
                ("dead" if h.dead else h.state.value) + ("*" if h.probe == "scripted" else ""),
                _slots(h, "cpu"),
                _slots(h, "gpu"),
                age(h.heartbeat_at),
                ",".join(h.queues) or "all",
                h.reason or "-",
            )
            for h in rows
        ],
    )


def _slots(host: HostView, kind: str) -> str:
    slots = host.slots.get(kind, {})
    return f"{slots.get('busy', 0)}/{slots.get('total', 0)}"


def _make_action(verb: str, sentence: str) -> click.Command:
    @click.argument("names", metavar="HOST...", nargs=-1, required=True)
    @click.option("--reason", default="", help="Kept with the host.")
    @click.option("--hard", is_flag=True, help="Stop what runs there, at no charge to its jobs.")
    @talks
    def act(face: Face, names: Sequence[str], reason: str, hard: bool) -> None:
        with face.client() as client:
            done = [client.act_on_host(name, verb, reason, hard=hard) for name in names]
        text = "\n".join(f"{h.name}  {paint(h.state.value)}  {h.reason}".rstrip() for h in done)
        face.show(done[0] if len(done) == 1 else done, text)

    act.__doc__ = f"{sentence}\n\nHOST is a name or an id.\n\n\b\nExample:\n  holdfast hosts {verb} gpu-box-7"
    return click.command(verb)(act)


for _verb, _sentence in _VERBS.items():
    hosts.add_command(_make_action(_verb, _sentence))
