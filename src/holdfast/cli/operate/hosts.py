"""`hosts` and what can be done to one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import Face, age, paint, span, table, talks
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.wire.api import HostView

_VERBS = {
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
      holdfast hosts drain gpu-box-7 --deadline 1h --reason "new driver"
    """
    if context.invoked_subcommand is not None:
        return
    with face.client() as client:
        rows = client.hosts(dead=dead, include_terminated=include_terminated)
    nothing = (
        "no dead hosts"
        if dead
        else "no hosts. Add one with `holdfast agent --join URL --token TOKEN`"
    )
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
                _say_reason(h) or "-",
            )
            for h in rows
        ],
    )


def _say_reason(host: HostView) -> str:
    """Why it is where it is, and of a drain with a deadline, when what runs there is stopped."""
    if host.drain_deadline is None:
        return host.reason
    left = -(datetime.now(UTC) - host.drain_deadline).total_seconds()
    when = f"in {span(left)}" if left > 0 else "now"
    return (
        f"what runs is stopped {when}: {host.reason}"
        if host.reason
        else f"what runs is stopped {when}"
    )


def _slots(host: HostView, kind: str) -> str:
    slots = host.slots.get(kind, {})
    return f"{slots.get('busy', 0)}/{slots.get('total', 0)}"


def _act(
    face: Face,
    names: Sequence[str],
    verb: str,
    reason: str,
    hard: bool,
    deadline_seconds: float | None = None,
    scale_down: bool = False,
) -> None:
    with face.client() as client:
        done = [
            client.act_on_host(
                name,
                verb,
                reason,
                hard=hard,
                deadline_seconds=deadline_seconds,
                scale_down=scale_down,
            )
            for name in names
        ]
    text = "\n".join(f"{h.name}  {paint(h.state.value)}  {_say_reason(h)}".rstrip() for h in done)
    face.show(done[0] if len(done) == 1 else done, text)


@hosts.command()
@click.argument("names", metavar="HOST...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept with the host.")
@click.option(
    "--deadline", metavar="TIME", help="How long running work may go on, as 1h; for ever otherwise."
)
@click.option("--hard", is_flag=True, help="Stop what runs there now, at no charge to its jobs.")
@click.option(
    "--scale-down",
    is_flag=True,
    help="The host is not needed any more: stop what runs there with its grace.",
)
@talks
def drain(
    face: Face,
    names: Sequence[str],
    reason: str,
    deadline: str | None,
    hard: bool,
    scale_down: bool,
) -> None:
    """Give hosts nothing new, and let what runs there end.

    Without --deadline it runs until it ends by itself. When a deadline has come, what is left is
    stopped as in any drain (TERM, grace, KILL) and queued again at no charge; a gang goes whole. A
    second drain changes the deadline. --scale-down stops it now, or at the deadline, and its jobs
    say that their host was scaled down. HOST is a name or an id.

    \b
    Examples:
      holdfast hosts drain gpu-box-7
      holdfast hosts drain gpu-box-7 gpu-box-8 --deadline 1h --reason "new driver"
      holdfast hosts drain rented-3 --scale-down
      holdfast hosts undrain gpu-box-7
    """
    if deadline is not None and hard:
        raise click.UsageError("--hard stops what runs now; --deadline says when. Give one of them")
    if scale_down and hard:
        raise click.UsageError(
            "--scale-down stops what runs by itself, each task with its grace. Leave --hard out"
        )
    seconds = None
    if deadline is not None:
        from holdfast.core.settings.resolve import parse_duration

        try:
            seconds = parse_duration(deadline)
        except ValueError as error:
            raise ValidationError(f"--deadline: {error}", field="deadline_seconds") from None
        if seconds <= 0:
            raise ValidationError(
                "--deadline: it is over as it begins; --hard stops what runs now",
                field="deadline_seconds",
            )
    _act(face, names, "drain", reason, hard, seconds, scale_down)


def _make_action(verb: str, sentence: str) -> click.Command:
    @click.argument("names", metavar="HOST...", nargs=-1, required=True)
    @click.option("--reason", default="", help="Kept with the host.")
    @click.option("--hard", is_flag=True, help="Stop what runs there, at no charge to its jobs.")
    @talks
    def act(face: Face, names: Sequence[str], reason: str, hard: bool) -> None:
        _act(face, names, verb, reason, hard)

    act.__doc__ = (
        f"{sentence}\n\nHOST is a name or an id.\n\n\b\nExample:\n  holdfast hosts {verb} gpu-box-7"
    )
    return click.command(verb)(act)


for _verb, _sentence in _VERBS.items():
    hosts.add_command(_make_action(_verb, _sentence))
