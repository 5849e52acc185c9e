"""Options that several commands share."""

from collections.abc import Callable, Sequence
from typing import Any

import click

from holdfast.errors import ValidationError

COUNT, POSITIVE, SECONDS = (click.IntRange(0), click.IntRange(1), click.FloatRange(0))
LABEL = click.option("--label", "labels", multiple=True, metavar="K=V", help="A label; repeatable.")
# An id, the beginning of one, a name, or @last: `jobs.find.find_job` reads it.
JOB = click.argument("job_id", metavar="JOB")
ME = "@me"  # the user that one's token acts for


def add_options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds these options, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


OWNER = add_options(
    click.option("--owner", metavar="USER", help="Only what this user submitted."),
    click.option("--mine", is_flag=True, help="Only what your token's user submitted."),
)


def choose_owner(owner: str | None, mine: bool) -> str | None:
    """Return whose work is listed: that of --owner, or one's own with --mine; None for everybody's."""
    if mine and owner is not None:
        raise click.UsageError("--mine goes without --owner")
    return ME if mine else owner


def read_pairs(flag: str, pairs: Sequence[str], field: str = "labels") -> dict[str, str]:
    """Read the K=V words of a repeatable flag. Raises ValidationError."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValidationError(f"{flag} {pair!r} is not K=V", field=field)
        found[name] = value
    return found


def read_seconds(flag: str, text: str, field: str | None = None) -> float:
    """Read a duration such as 90s or 2h. Raises ValidationError."""
    from holdfast.core.settings.resolve import parse_duration  # most commands read none

    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValidationError(f"{flag}: {error}", field=field or flag[2:]) from None


def read_since(text: str, now: float, flag: str = "--since") -> float:
    """Read a time that is over, as 2h ago or as a date; `now` is Unix seconds. Raises
    ValidationError."""
    from holdfast.client.specs import parse_start
    from holdfast.core.settings.resolve import parse_duration

    try:
        return now - parse_duration(text)
    except ValueError:
        pass
    try:
        return parse_start(text, now)
    except ValueError:
        raise ValidationError(
            f"{flag} {text!r} is no time; write 2h, 7d, or 2027-01-31T18:00", field="since"
        ) from None


def ask(question: str) -> None:
    """Ask the user on stderr. Raises ClickException unless the answer is yes."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise ValidationError("there was no answer; --yes goes on without the question") from None
    if not agreed:
        raise ValidationError("nothing was changed")
