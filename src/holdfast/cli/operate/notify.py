"""`notify`: the targets through which people are told of their jobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.endings import EXIT_FAILED
from holdfast.cli.operate.resource import Columns, draw_columns, resource
from holdfast.cli.output import facts, note
from holdfast.client.synchronous import Client
from holdfast.errors import ValidationError
from holdfast.wire.webhooks import NoticeTarget

PROJECT = click.option("--project", metavar="NAME", help="A project's target, not the cluster's.")
COLUMNS: Columns[NoticeTarget] = {
    "NAME": lambda t: t.name,
    "PROJECT": lambda t: t.project or "-",
    "SERVICE": lambda t: t.service,
    "STATE": lambda t: t.state.value,
    "PENDING": lambda t: str(t.pending),
    "DEAD": lambda t: str(t.dead),
}


@resource(
    "TARGET",
    lambda rows: draw_columns(COLUMNS, rows),
    nothing="no notice targets. Make one with `holdfast notify set NAME --from-stdin`",
)
def notify(client: Client) -> Sequence[NoticeTarget]:
    """List the targets through which people are told of jobs: mail, Slack, Teams, Discord, ntfy, …

    A job names them with --notify, a project for all of its jobs with its setting `notify`. A target's
    address is a secret: no command shows it again.

    \b
    Examples:
      holdfast notify set ops --from-stdin < slack-url
      holdfast notify test ops
      holdfast submit --notify ops -- python train.py
      holdfast submit --notify ops:failure,waits=10m -- python train.py
      holdfast projects set vision notify="ops oncall:stall"
    """
    return client.notice_targets()


def _describe(target: NoticeTarget) -> str:
    return facts(
        (
            ("name", target.name),
            ("for", "every project" if target.project is None else f"project {target.project}"),
            ("service", target.service),
            ("state", target.state.value),
            ("messages", f"{target.pending} pending, {target.dead} given up"),
            ("last error", target.error),
        )
    )


@notify.add("show", _describe)
@PROJECT
def show(client: Client, name: str, project: str | None) -> NoticeTarget:
    """Show one target, and the error of its last message where it did not arrive.

    \b
    Example:
      holdfast notify show ops
    """
    return client.notice_target(name, project)


@notify.command("set")
@notify.subject
@click.argument("target", metavar="[URL]", required=False)
@click.option("--from-stdin", is_flag=True, help="Read the URL from the standard input.")
@PROJECT
@talks
def set_target(
    io: CommandIO, subject: str, target: str | None, from_stdin: bool, project: str | None
) -> None:
    """Make a target, or give it another address. Words of a command line can be read by the machine's
    other users, so --from-stdin is better for an address that holds a password.

    URL is written as Apprise does: slack://…, mailtos://USER:PASSWORD@HOST?to=…, discord://…, ntfys://…,
    mmosts://…, gchat://…, tgram://…, workflows://… for Teams; or the https:// address that Slack, Discord,
    Google Chat or Teams gave out. An admin makes the cluster's targets; those of a shared project may be
    made with any submit token.

    \b
    Examples:
      holdfast notify set ops --from-stdin < slack-url
      holdfast notify set me 'mailtos://robot:PASSWORD@mail.example?to=a@b.org'
      holdfast notify set phone ntfys://ntfy.example.org/my-topic --project vision
    """
    if from_stdin == (target is not None):
        raise ValidationError("give the URL, or --from-stdin")
    given = sys.stdin.readline().strip() if target is None else target
    with io.client() as client:
        made = client.set_notice_target(subject, given, project)
    io.show(made, f"{made.name}: {made.service}")
    if not io.as_json:
        of = "" if project is None else f" --project {project}"
        note(f"its address is not shown again. Try it: holdfast notify test {made.name}{of}")


@notify.command()
@notify.subject
@PROJECT
@talks
def delete(io: CommandIO, subject: str, project: str | None) -> None:
    """Forget a target and its messages. Jobs that name it are told to the others.

    \b
    Example:
      holdfast notify delete ops
    """
    with io.client() as client:
        client.delete_notice_target(subject, project)
    io.show({"deleted": subject}, f"{subject}: deleted")


@notify.command()
@notify.subject
@PROJECT
@talks
def test(io: CommandIO, subject: str, project: str | None) -> int | None:
    """Send one message now. Exit code 1 unless the service takes it.

    \b
    Example:
      holdfast notify test ops
    """
    with io.client() as client:
        result = client.test_notice_target(subject, project)
    text = f"delivered in {result.seconds * 1000:.0f} ms"
    io.show(result, text if result.delivered else f"not delivered: {result.error}")
    return None if result.delivered else EXIT_FAILED
