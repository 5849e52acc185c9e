"""`webhooks`: the URLs that get events, the deliveries, and sending them again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice
from typing import Any

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.endings import EXIT_FAILED
from holdfast.cli.operate.resource import Columns, draw_columns, resource, say_state_of
from holdfast.cli.options import POSITIVE, read_seconds
from holdfast.cli.output import age, facts, note, say_state, table
from holdfast.client.synchronous import Client
from holdfast.core.ids import ID_PATTERN
from holdfast.core.webhooks.values import DeliveryRecord, WebhookRecord
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.states import tell_state

SECRET = click.option(
    "--secret-file", metavar="FILE", help="Your own secret (16 to 256 characters); - is stdin."
)


COLUMNS: Columns[WebhookRecord] = {
    "ID": lambda h: h.id,
    "NAME": lambda h: h.name or "-",
    "STATE": lambda h: tell_state(h).word,
    "TO": lambda h: h.url,
    "EVENTS": lambda h: ",".join(h.events) or "(all)",
    "PROJECT": lambda h: h.project or "-",
    "PENDING": lambda h: str(h.pending),
    "DEAD": lambda h: str(h.dead),
}


def find_webhook(client: Client, word: str) -> str:
    """Return the id of the webhook that a word names: its id, or the name it was given.

    Raises:
        NotFound: no webhook has this name.
        ValidationError: several have; the message lists their ids.
    """
    if ID_PATTERN.fullmatch(word):
        return word
    found = [hook.id for hook in client.webhooks() if hook.name == word]
    if not found:
        raise NotFound(
            f"there is no webhook {word[:64]!r}: give its id or its name; `holdfast webhooks` "
            "lists them"
        )
    if len(found) > 1:
        raise ValidationError(
            f"{word!r} names several webhooks; give one of these ids: {', '.join(found)}",
            field="webhook",
        )
    return found[0]


@resource(
    "WEBHOOK",
    lambda rows: draw_columns(COLUMNS, rows, elastic=3),
    nothing="no webhooks. Make one with `holdfast webhooks create URL`",
    find=find_webhook,
)
def webhooks(client: Client) -> Sequence[WebhookRecord]:
    """List webhooks: their URLs, and the number of pending and dead deliveries.

    Every call is signed, is repeated until the receiver accepts it, and is in order for each job;
    docs/guides/webhooks.md has the receiver's side. Takes an admin token.

    \b
    Examples:
      holdfast webhooks
      holdfast webhooks create https://hooks.example/h --event "job.*"
      holdfast webhooks test WEBHOOK
      holdfast webhooks deliveries WEBHOOK --state dead
      holdfast webhooks redeliver WEBHOOK --dead
    """
    return client.webhooks()


def _describe(hook: WebhookRecord) -> str:
    until = hook.old_secret_until
    return facts(
        (
            ("id", hook.id),
            ("name", hook.name),
            ("url", hook.url),
            ("events", ", ".join(hook.events) or "all, except those about webhooks"),
            ("project", hook.project or "every project"),
            ("state", say_state(tell_state(hook).word, tell_state(hook).sentence)),
            ("old secret", f"signs too until {until:%Y-%m-%d %H:%M} UTC" if until else ""),
            ("deliveries", f"{hook.pending} pending, {hook.dead} dead"),
        )
    )


@webhooks.add("show", _describe)
def show(client: Client, webhook_id: str) -> WebhookRecord:
    """Show one webhook.

    \b
    Example:
      holdfast webhooks show 06ch2v8wq1m4kz7d9x3t
    """
    return client.webhook(webhook_id)


def _read_secret(secret_file: str | None) -> str | None:
    """Read a secret from its file; other users of the machine could read it on a command line."""
    if secret_file is None:
        return None
    try:
        with click.open_file(secret_file) as file:
            return str(file.read()).strip()
    except OSError as error:
        message = f"the secret's file {secret_file} cannot be read: {error.strerror}"
        raise ValidationError(message) from error


@webhooks.command()
@click.argument("target", metavar="URL")
@click.option(
    "--event",
    "events",
    multiple=True,
    metavar="PATTERN",
    help="As job.failed or job.*; repeatable.",
)
@click.option("--project", metavar="NAME", help="Only this project's events.")
@click.option("--name", default="", help="Its purpose.")
@SECRET
@talks
def create(
    io: CommandIO,
    target: str,
    events: Sequence[str],
    project: str | None,
    name: str,
    secret_file: str | None,
) -> None:
    """Send events to URL from now on, and print the secret that signs them, this once.

    URL is https at a public address. Plain http, loopback and private networks need the setting
    webhook_allow_private.

    \b
    Examples:
      holdfast webhooks create https://hooks.example/holdfast
      holdfast webhooks create https://hooks.example/h --name pager
    """
    with io.client() as client:
        made = client.create_webhook(
            target, events=events, project=project, name=name, secret=_read_secret(secret_file)
        )
    io.show(made, made.secret)
    if not io.as_json:
        try_it = f"holdfast webhooks test {made.id}"
        note(f"webhook {made.id}; its secret is not shown again. Try it: {try_it}")


@webhooks.add("set", _describe)
@click.option("--to", metavar="URL", help="The new URL, also for pending deliveries.")
@click.option("--event", "events", multiple=True, metavar="PATTERN", help="The new events.")
@click.option("--all-events", is_flag=True, help="Every event, except those about webhooks.")
@click.option("--project", metavar="NAME", help="Only this project's events.")
@click.option("--all-projects", is_flag=True, help="Every project's events.")
@click.option("--name", help="Its purpose.")
def set_webhook(
    client: Client,
    webhook_id: str,
    to: str | None,
    events: Sequence[str],
    all_events: bool,
    project: str | None,
    all_projects: bool,
    name: str | None,
) -> WebhookRecord:
    """Change a webhook; fields that are not named stay.

    \b
    Examples:
      holdfast webhooks set WEBHOOK --to https://new.example/hook
      holdfast webhooks set WEBHOOK --event job.failed --all-projects
    """
    if (events and all_events) or (project and all_projects):
        raise ValidationError("give one of --event and --all-events, --project and --all-projects")
    changes: dict[str, Any] = {}
    if to is not None:
        changes["url"] = to
    if events or all_events:
        changes["events"] = list(events)
    if project is not None or all_projects:
        changes["project"] = project
    if name is not None:
        changes["name"] = name
    return client.change_webhook(webhook_id, **changes)


@webhooks.deletes(act="hook.delete")
def delete(client: Client, webhook_id: str) -> None:
    """Forget a webhook and its deliveries.

    \b
    Example:
      holdfast webhooks delete 06ch2v8wq1m4kz7d9x3t
    """
    client.delete_webhook(webhook_id)


@webhooks.command()
@webhooks.subject
@click.option("--grace", default="24h", metavar="TIME", help="How long the old secret signs too.")
@SECRET
@talks
def rotate(io: CommandIO, subject: str, grace: str, secret_file: str | None) -> None:
    """Give a webhook a new secret and print it, this once.

    During the grace every call carries both signatures, so that receivers can change over.

    \b
    Examples:
      holdfast webhooks rotate WEBHOOK
      holdfast webhooks rotate WEBHOOK --grace 0          # the old one leaked
    """
    seconds = read_seconds("--grace", grace)
    secret = _read_secret(secret_file)
    with io.client() as client:
        made = client.rotate_webhook(
            find_webhook(client, subject), secret=secret, grace_seconds=seconds
        )
    io.show(made, made.secret)
    if not io.as_json:
        note(f"webhook {made.id} has a new secret; it is not shown again")


@webhooks.command()
@webhooks.subject
@talks
def test(io: CommandIO, subject: str) -> int | None:
    """Send one event `webhook.test` now. Exit code 1 unless the receiver answers 2xx.

    \b
    Example:
      holdfast webhooks test 06ch2v8wq1m4kz7d9x3t
    """
    with io.client() as client:
        result = client.test_webhook(find_webhook(client, subject))
    text = f"delivered: the receiver answered {result.status} in {result.seconds * 1000:.0f} ms"
    io.show(result, text if result.delivered else f"not delivered: {result.error}")
    return None if result.delivered else EXIT_FAILED


@webhooks.command()
@webhooks.subject
@click.argument("delivery_id", metavar="[DELIVERY]", required=False)
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(["pending", "delivered", "dead"]),
    help="Only these; repeatable.",
)
@click.option("--limit", type=POSITIVE, default=50, help="The most to list.")
@talks
def deliveries(
    io: CommandIO, subject: str, delivery_id: str | None, states: Sequence[str], limit: int
) -> None:
    """List a webhook's deliveries, newest first; or show one with the body it sends.

    \b
    Examples:
      holdfast webhooks deliveries WEBHOOK --state dead --state pending
      holdfast webhooks deliveries WEBHOOK DELIVERY
    """
    with io.client() as client:
        if delivery_id is not None:
            one = client.delivery(find_webhook(client, subject), delivery_id)
            io.show(one, one.body)
            return
        found = client.deliveries(
            find_webhook(client, subject), states=states, page_size=min(limit, 1000)
        )
        rows = list(islice(found, min(limit, sys.maxsize)))
    io.show(rows, _deliveries_table(rows))


def _deliveries_table(rows: Sequence[DeliveryRecord]) -> str:
    lines = []
    for d in rows:
        said = d.error or (f"answered {d.status}" if d.status else "")
        times = (age(d.created_at), age(d.next_at))
        lines.append((d.id, d.state.value, d.event_kind, str(d.tries), *times, said))
    return table(("ID", "STATE", "EVENT", "TRIES", "AGE", "NEXT", "LAST ANSWER"), lines)


@webhooks.command()
@webhooks.subject
@click.argument("delivery_ids", metavar="[DELIVERY]...", nargs=-1)
@click.option("--dead", is_flag=True, help="Every dead delivery.")
@talks
def redeliver(io: CommandIO, subject: str, delivery_ids: Sequence[str], dead: bool) -> None:
    """Send deliveries again; dead or delivered ones begin their tries anew, pending ones go now.

    \b
    Examples:
      holdfast webhooks redeliver WEBHOOK DELIVERY
      holdfast webhooks redeliver WEBHOOK --dead
    """
    if dead == bool(delivery_ids):
        raise ValidationError("name the deliveries, or say --dead")
    with io.client() as client:
        if dead:
            count = client.redeliver_dead(find_webhook(client, subject))
            io.show({"count": count}, f"{count} dead deliveries are sent again")
            return
        hook_id = find_webhook(client, subject)
        rows = [client.redeliver(hook_id, delivery_id) for delivery_id in delivery_ids]
    io.show(rows, _deliveries_table(rows))


@webhooks.add("pause", lambda hook: say_state_of(hook.id, hook), act="hook.pause", asks=True)
@click.option("--reason", default="", help="Shown with the webhook.")
def pause(client: Client, webhook_id: str, reason: str) -> WebhookRecord:
    """Send nothing more to a webhook. Its events are kept as long as history is.

    \b
    Example:
      holdfast webhooks pause WEBHOOK --reason "receiver is being moved"
    """
    return client.pause_webhook(webhook_id, reason)


@webhooks.add("resume", lambda hook: say_state_of(hook.id, hook), act="hook.resume")
def resume(client: Client, webhook_id: str) -> WebhookRecord:
    """Send again, from the event at which the webhook stopped.

    \b
    Example:
      holdfast webhooks resume WEBHOOK
    """
    return client.resume_webhook(webhook_id)
