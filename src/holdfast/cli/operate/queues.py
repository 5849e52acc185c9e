"""`queues`: the list of queues, and the changes to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.face import Face, talks
from holdfast.cli.operate.config import read_changes, value_text
from holdfast.cli.output import table
from holdfast.core.settings.table import QUEUE_PRESETS

if TYPE_CHECKING:
    from holdfast.core.records import QueueRecord


@click.group(invoke_without_command=True)
@click.pass_context
@talks
def queues(face: Face, context: click.Context) -> None:
    """List queues: their jobs and their own settings.

    \b
    Examples:
      holdfast queues
      holdfast queues set nightly time_limit_seconds=4h max_running=2
      holdfast queues pause gpu --reason "new driver"
    """
    if context.invoked_subcommand is not None:
        return
    face.answer(lambda client: client.queues(), queues_table)


def queues_table(rows: Sequence[QueueRecord]) -> str:
    """Draw the table of `queues`."""
    return table(
        ("QUEUE", "WAITING", "QUEUED", "RUNNING", "PAUSED", "SETTINGS"),
        [
            (
                q.name,
                str(q.waiting),
                str(q.queued),
                str(q.running),
                (q.paused_reason or "yes") if q.paused_at else "-",
                " ".join(f"{k}={value_text(v)}" for k, v in q.settings.items()) or "-",
            )
            for q in rows
        ],
    )


def _line(queue: QueueRecord) -> str:
    state = "paused" if queue.paused_at else "open"
    return f"{queue.name}: {state}, {queue.queued} queued, {queue.running} running"


@queues.command("set")
@click.argument("name")
@click.argument("changes", metavar="SETTING=VALUE...", nargs=-1)
@click.option("--unset", multiple=True, metavar="SETTING", help="Use the cluster's value again.")
@talks
def set_queue(face: Face, name: str, changes: Sequence[str], unset: Sequence[str]) -> None:
    """Create a queue, or change its settings. `off` switches a limit off.

    \b
    Examples:
      holdfast queues set nightly time_limit_seconds=4h on_trip=fail
      holdfast queues set video stall_watch=off --unset max_running
    """
    with face.client() as client:
        queue = client.put_queue(name, read_changes(changes), unset)
    face.show(queue, queues_table([queue]))


@queues.command()
@click.argument("name", metavar="PRESET", type=click.Choice(["render"]))
@talks
def preset(face: Face, name: str) -> None:
    """Make queues that belong together, each with its limits, for jobs and for calls.

    render: video, ingest-fetch, ingest-load and input. A queue that is there gets the preset's settings
    and keeps its others.

    \b
    Example:
      holdfast queues preset render
    """
    with face.client() as client:
        made = [client.put_queue(queue, own) for queue, own in QUEUE_PRESETS[name].items()]
    face.show(made, queues_table(made))


@queues.command()
@click.argument("name")
@click.option("--reason", default="", help="Shown by `why`.")
@click.option("--hard", is_flag=True, help="Also stop running jobs, at no charge.")
@talks
def pause(face: Face, name: str, reason: str, hard: bool) -> None:
    """Start no more jobs from a queue.

    \b
    Example:
      holdfast queues pause gpu --reason "new driver"
    """
    face.answer(lambda client: client.pause_queue(name, reason, hard=hard), _line)


@queues.command()
@click.argument("name")
@talks
def resume(face: Face, name: str) -> None:
    """Start jobs from a queue again.

    \b
    Example:
      holdfast queues resume gpu
    """
    face.answer(lambda client: client.resume_queue(name), _line)


@queues.command()
@click.argument("name")
@talks
def delete(face: Face, name: str) -> None:
    """Delete a queue that has no unfinished jobs.

    \b
    Example:
      holdfast queues delete nightly
    """
    with face.client() as client:
        client.delete_queue(name)
    face.show({"deleted": name}, f"{name}: deleted")
