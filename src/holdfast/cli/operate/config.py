"""`config`: every setting, its value in force, and the source of the value."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.options import ask, read_since
from holdfast.cli.output import table
from holdfast.core.settings.resolve import SETTINGS, parse_value
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.core.report.money import PriceEffect
    from holdfast.core.settings.resolve import Effective, Value

PRICE = "gpu_hour_usd"


@click.group(invoke_without_command=True)
@click.option("--queue", help="The values for this queue.")
@click.option("--project", help="The values for this project.")
@click.option("--job", "job_id", metavar="JOB", help="The values for this job.")
@click.pass_context
@talks
def config(
    io: CommandIO,
    context: click.Context,
    queue: str | None,
    project: str | None,
    job_id: str | None,
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
    with io.client() as client:
        rows = (
            client.settings(find_job(client, job_id)) if job_id else client.config(queue, project)
        )
    io.show(rows, config_table(rows))


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
@click.option(
    "--from", "since", metavar="TIME", help="A price holds from then on: 2h (ago), or a date."
)
@click.option("--host", help="The price of this host alone.")
@click.option("--yes", is_flag=True, help="Re-price hours on record without a question.")
@talks
def set_value(
    io: CommandIO,
    words: tuple[str, ...],
    queue: str | None,
    project: str | None,
    since: str | None,
    host: str | None,
    yes: bool,
) -> None:
    """Change settings for the cluster, a queue or a project. `off` switches a limit off.

    It takes effect for running work too. A price (gpu_hour_usd) holds from now on, or --from an
    earlier time; it then says first what that does to costs and budgets, and asks.

    \b
    Examples:
      holdfast config set watchdog_cap 5
      holdfast config set time_limit_seconds 4h --queue gpu
      holdfast config set history_days=90 log_keep_mb=32
      holdfast config set max_retries 2 --project vision
      holdfast config set gpu_hour_usd 2.50 --from 2027-01-01
    """
    one = len(words) == 2 and "=" not in words[0]
    changes = read_changes(["=".join(words)] if one else words)
    if since is None and host is None:
        _change(io, queue, project, changes, [])
        return
    if set(changes) != {PRICE} or queue or project:
        raise click.UsageError("--from and --host go with gpu_hour_usd alone, as gpu_hour_usd 2.50")
    _set_price(io, changes[PRICE], since, host or "", yes=yes)


@config.command("unset")
@click.argument("name")
@click.option("--queue", help="For this queue only.")
@click.option("--project", help="For this project only.")
@talks
def unset_value(io: CommandIO, name: str, queue: str | None, project: str | None) -> None:
    """Remove a setting from its layer, so that the layer below applies. Hours that had a price keep it.

    \b
    Example:
      holdfast config unset watchdog_cap
    """
    _change(io, queue, project, {}, [name])


def _set_price(io: CommandIO, usd: Value, since: str | None, host: str, *, yes: bool) -> None:
    """Set a price; first say what it does to hours on record, and ask where it does something."""
    at = None if since is None else read_since(since, time.time(), "--from")
    price = usd if isinstance(usd, (int, float)) else None
    with io.client() as client:
        effect = client.set_price(price, host=host, since=at, dry_run=True)
        if abs(effect.after_usd - effect.before_usd) >= 0.005:
            click.echo(_say_effect(effect), err=True)
            if not yes:
                ask("holdfast: set this price?")
        effect = client.set_price(price, host=host, since=at)
    io.show(effect, "the price is set")


def _say_effect(effect: PriceEffect) -> str:
    more = effect.after_usd - effect.before_usd
    lines = [
        f"since {effect.since.astimezone():%Y-%m-%d %H:%M}, jobs cost ${effect.after_usd:,.2f} "
        f"with this price, and ${effect.before_usd:,.2f} without it: "
        f"${abs(more):,.2f} {'less' if more < 0 else 'more'}",
        *(
            f"with it, {sentence} this month, which is all of its budget"
            for sentence in effect.crossed
        ),
    ]
    return "\n".join(lines)


def _change(
    io: CommandIO,
    queue: str | None,
    project: str | None,
    changes: dict[str, Value],
    unset: list[str],
) -> None:
    if queue and project:
        raise click.UsageError("give either --queue or --project")
    with io.client() as client:
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
    io.show(touched, config_table(touched))
