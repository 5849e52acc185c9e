"""`config`: every setting, its value in force, and the source of the value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.face import Face, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.output import table
from holdfast.core.settings.resolve import SETTINGS, parse_value
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.core.settings.resolve import Effective, Value


@click.group(invoke_without_command=True)
@click.option("--queue", help="The values for this queue.")
@click.option("--project", help="The values for this project.")
@click.option("--job", "job_id", metavar="JOB", help="The values for this job.")
@click.pass_context
@talks
def config(
    face: Face, context: click.Context, queue: str | None, project: str | None, job_id: str | None
) -> None:
    """Show every setting: the value in force, and the layer it comes from.

    The first layer that names it wins: job, queue or project, cluster, environment, default.

    \b
    Examples:
      holdfast config
      holdfast config --queue gpu
      holdfast config --project vision
      holdfast config set stall_timeout_seconds 5m --queue gpu
    """
    if context.invoked_subcommand is not None:
        return
    if (queue or project) and job_id:
        raise click.UsageError("give either --job, or --queue and --project")
    with face.client() as client:
        rows = (
            client.settings(find_job(client, job_id)) if job_id else client.config(queue, project)
        )
    face.show(rows, config_table(rows))


def config_table(rows: Sequence[Effective]) -> str:
    """Draw the table of `config`."""
    helps = {name: setting.help for name, setting in SETTINGS.items()}
    return table(
        ("SETTING", "VALUE", "SOURCE", "WHAT IT IS"),
        [(e.name, value_text(e.value), e.source, helps.get(e.name, "")) for e in rows],
    )


def value_text(value: Value) -> str:
    """Write a setting's value as a person types it."""
    if value is None or value is False:
        return "off"
    if value is True:
        return "on"
    return f"{value:g}" if isinstance(value, float) else str(value)


def read_changes(pairs: Sequence[str]) -> dict[str, Value]:
    """Read `NAME=VALUE` words as checked settings. Raises ValidationError."""
    changes: dict[str, Value] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValidationError(f"{pair!r} is not SETTING=VALUE", field=name)
        changes[name] = parse_value(name, value)
    return changes


@config.command("set")
@click.argument("words", nargs=-1, required=True, metavar="NAME VALUE | NAME=VALUE...")
@click.option("--queue", help="For this queue only.")
@click.option("--project", help="For this project only.")
@talks
def set_value(face: Face, words: tuple[str, ...], queue: str | None, project: str | None) -> None:
    """Change settings for the cluster, a queue or a project. `off` switches a limit off.

    It takes effect for running work too.

    \b
    Examples:
      holdfast config set watchdog_cap 5
      holdfast config set time_limit_seconds 4h --queue gpu
      holdfast config set history_days=90 log_keep_mb=32
      holdfast config set max_retries 2 --project vision
    """
    one = len(words) == 2 and "=" not in words[0]
    changes = read_changes(["=".join(words)] if one else words)
    _change(face, queue, project, changes, [])


@config.command("unset")
@click.argument("name")
@click.option("--queue", help="For this queue only.")
@click.option("--project", help="For this project only.")
@talks
def unset_value(face: Face, name: str, queue: str | None, project: str | None) -> None:
    """Remove a setting from its layer, so that the layer below applies.

    \b
    Example:
      holdfast config unset watchdog_cap
    """
    _change(face, queue, project, {}, [name])


def _change(
    face: Face, queue: str | None, project: str | None, changes: dict[str, Value], unset: list[str]
) -> None:
    if queue and project:
        raise click.UsageError("give either --queue or --project")
    with face.client() as client:
        if queue is not None:
            client.put_queue(queue, changes, unset)
            rows = client.config(queue)
        elif project is not None:
            client.put_project(project, changes, unset)
            rows = client.config(project=project)
        else:
            client.set_config(changes, unset)
            rows = client.config()
    touched = [row for row in rows if row.name in changes or row.name in unset]
    face.show(touched, config_table(touched))
