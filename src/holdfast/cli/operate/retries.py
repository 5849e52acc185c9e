"""`retries`: the kill switch of all retries, and the number of jobs that wait for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.output import facts, table
from holdfast.core.words import count_of

if TYPE_CHECKING:
    from holdfast.wire.api import RetriesView


@click.group(invoke_without_command=True)
@click.pass_context
@talks
def retries(io: CommandIO, context: click.Context) -> None:
    """Show the holds on retries, and how many jobs wait for a retry.

    \b
    Examples:
      holdfast retries
      holdfast retries hold --reason "the registry is down"
      holdfast retries release
    """
    if context.invoked_subcommand is not None:
        return
    io.answer(lambda client: client.retries(), retries_text)


def retries_text(view: RetriesView) -> str:
    """Write the answer of `retries` for a person."""
    lines = [("retries", "go" if view.enabled else "held")]
    for hold in view.holds:
        whose = f"project {hold.project}" if hold.project else f"the {hold.source}"
        lines.append((f"held by {whose}", hold.reason or "no reason was given"))
    lines += [
        ("backing off", f"{count_of(view.backing_off, 'job')}, until their time"),
        ("held", f"{count_of(view.held, 'job')}, until the release" if view.held else ""),
        ("rate limit", "none" if view.rate_limit is None else f"{view.rate_limit:g} a second"),
    ]
    text = facts(lines)
    if not view.projects:
        return text
    rows = [(row.project, str(row.backing_off), str(row.held)) for row in view.projects]
    return text + "\n\n" + table(("PROJECT", "BACKING OFF", "HELD"), rows)


@retries.command()
@click.option("--project", help="Only this project's.")
@click.option("--reason", default="", help="Shown by `why`.")
@talks
def hold(io: CommandIO, project: str | None, reason: str) -> None:
    """Hold back every retry of the cluster or of a project until the release. None is lost.

    First attempts, and jobs that were stopped without their fault (preempted, drained), still start.

    \b
    Examples:
      holdfast retries hold --reason "the registry is down"
      holdfast retries hold --project vision
    """
    io.answer(lambda client: client.hold_retries(project, reason), retries_text)


@retries.command()
@click.option("--project", help="Only this project's.")
@talks
def release(io: CommandIO, project: str | None) -> None:
    """Let retries go again, those that fell due meanwhile no faster than the rate limit.

    \b
    Example:
      holdfast retries release
    """
    io.answer(lambda client: client.release_retries(project), retries_text)
