"""`queues`: the list of queues, and the changes to one."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.operate.config import read_changes, value_text
from holdfast.cli.operate.resource import Columns, draw_columns, resource
from holdfast.client.synchronous import Client
from holdfast.core.records import QueueRecord
from holdfast.core.settings.table import QUEUE_PRESETS
from holdfast.wire.states import tell_state

COLUMNS: Columns[QueueRecord] = {
    "QUEUE": lambda q: q.name,
    "WAITING": lambda q: str(q.waiting),
    "QUEUED": lambda q: str(q.queued),
    "RUNNING": lambda q: str(q.running),
    "STATE": lambda q: tell_state(q).word,
    "REASON": lambda q: tell_state(q).sentence or "-",
    "SETTINGS": lambda q: " ".join(f"{k}={value_text(v)}" for k, v in q.settings.items()) or "-",
}


def queues_table(rows: Sequence[QueueRecord]) -> str:
    """Draw the table of `queues`."""
    return draw_columns(COLUMNS, rows)


def queue_table(queue: QueueRecord) -> str:
    """Draw the table of one queue."""
    return queues_table([queue])


@resource("NAME", queues_table)
def queues(client: Client) -> Sequence[QueueRecord]:
    """List queues: their jobs and their own settings.

    \b
    Examples:
      holdfast queues
      holdfast queues set nightly time_limit_seconds=4h max_running=2
      holdfast queues pause gpu --reason "new driver"
    """
    return client.queues()


def _line(queue: QueueRecord) -> str:
    return f"{queue.name}: {tell_state(queue).word}, {queue.queued} queued, {queue.running} running"


@queues.add("show", queue_table)
def show(client: Client, name: str) -> QueueRecord:
    """Show one queue. `holdfast config --queue` shows every setting in force and its source.

    \b
    Example:
      holdfast queues show nightly
    """
    return client.queue(name)


@queues.add("set", queue_table)
@click.argument("changes", metavar="SETTING=VALUE...", nargs=-1)
@click.option("--unset", multiple=True, metavar="SETTING", help="Use the cluster's value again.")
def set_queue(
    client: Client, name: str, changes: Sequence[str], unset: Sequence[str]
) -> QueueRecord:
    """Create a queue, or change its settings. `off` switches a limit off.

    \b
    Examples:
      holdfast queues set nightly time_limit_seconds=4h on_trip=fail
      holdfast queues set video stall_watch=off --unset max_running
    """
    return client.put_queue(name, read_changes(changes), unset)


@queues.command()
@click.argument("name", metavar="PRESET", type=click.Choice(["render"]))
@talks
def preset(io: CommandIO, name: str) -> None:
    """Make queues that belong together, each with its limits, for jobs and for calls.

    render: video, ingest-fetch, ingest-load and input. A queue that is there gets the preset's settings
    and keeps its others.

    \b
    Example:
      holdfast queues preset render
    """
    with io.client() as client:
        made = [client.put_queue(queue, own) for queue, own in QUEUE_PRESETS[name].items()]
    io.show(made, queues_table(made))


@queues.add("pause", _line, act="queue.pause", asks=True)
@click.option("--reason", default="", help="Shown by `why`.")
@click.option("--hard", is_flag=True, help="Also stop running jobs, at no charge.")
def pause(client: Client, name: str, reason: str, hard: bool) -> QueueRecord:
    """Start no more jobs from a queue.

    \b
    Example:
      holdfast queues pause gpu --reason "new driver"
    """
    return client.pause_queue(name, reason, hard=hard)


@queues.add("resume", _line, act="queue.resume")
def resume(client: Client, name: str) -> QueueRecord:
    """Start jobs from a queue again.

    \b
    Example:
      holdfast queues resume gpu
    """
    return client.resume_queue(name)


@queues.deletes(act="queue.delete")
def delete(client: Client, name: str) -> None:
    """Delete a queue that has no unfinished jobs.

    \b
    Example:
      holdfast queues delete nightly
    """
    client.delete_queue(name)
