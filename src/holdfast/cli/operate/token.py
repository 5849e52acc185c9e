"""`token`: make, list and revoke tokens."""

from collections.abc import Sequence

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.operate.resource import Columns, draw_columns, resource
from holdfast.cli.options import read_seconds
from holdfast.cli.output import age, note
from holdfast.client.synchronous import Client
from holdfast.core.records import TokenRecord
from holdfast.errors import NotFound
from holdfast.wire.states import tell_state

COLUMNS: Columns[TokenRecord] = {
    "ID": lambda t: t.id,
    "ROLE": lambda t: t.role,
    "USER": lambda t: "-" if t.role == "join" else t.acts_for,
    "NAME": lambda t: t.name or "-",
    "STATE": lambda t: tell_state(t).word,
    "AGE": lambda t: age(t.created_at),
    "EXPIRES": lambda t: age(t.expires_at),
}


@resource("ID", lambda rows: draw_columns(COLUMNS, rows, elastic=3))
def token(client: Client) -> Sequence[TokenRecord]:
    """List tokens, without their secrets; make and revoke them.

    \b
    Examples:
      holdfast token create --role submit --name ci
      holdfast token create --role join          # for one `holdfast agent`
    """
    return client.tokens()


@token.command()
@click.option("--role", type=click.Choice(["admin", "submit", "read", "join"]), required=True)
@click.option("--name", default="", help="Its purpose.")
@click.option("--user", default="", help="The owner of what it submits. [default: its name]")
@click.option("--expires", metavar="TIME", help="As 12h or 30d. [default: 1h for a join token]")
@click.option(
    "--reach",
    multiple=True,
    metavar="PROJECT",
    help="May come into others' jobs there; repeatable.",
)
@talks
def create(
    io: CommandIO, role: str, name: str, user: str, expires: str | None, reach: tuple[str, ...]
) -> None:
    """Make a token and print its secret, this once.

    \b
    Examples:
      holdfast token create --role submit --name ci --expires 90d
      holdfast token create --role submit --user alice --name "alice's laptop"
      holdfast token create --role submit --name oncall --reach vision
      holdfast agent --join URL --token "$(holdfast token create --role join)"
    """
    seconds = None
    if expires is not None:
        seconds = read_seconds("--expires", expires)
    with io.client() as client:
        made = client.create_token(role, name, seconds, user, reach)
    io.show(made, made.secret)
    if not io.as_json:
        note(f"token {made.id} ({made.role}); its secret is not shown again")


@token.add("show", lambda found: draw_columns(COLUMNS, [found], elastic=3))
def show(client: Client, token_id: str) -> TokenRecord:
    """Show one token, without its secret.

    \b
    Example:
      holdfast token show 06ch2v8wq1m4kz7d9x3t
    """
    for found in client.tokens():
        if found.id == token_id:
            return found
    raise NotFound(f"there is no token {token_id[:64]!r}; `holdfast token list` lists them")


@token.deletes("revoke", "revoked", act="token.revoke")
def revoke(client: Client, token_id: str) -> None:
    """End a token; it is refused within seconds.

    \b
    Example:
      holdfast token revoke 06ch2v8wq1m4kz7d9x3t
    """
    client.revoke_token(token_id)
