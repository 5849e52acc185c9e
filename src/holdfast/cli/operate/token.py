"""`token`: make, list and revoke tokens."""

import click

from holdfast.cli.face import Face, talks
from holdfast.cli.options import read_seconds
from holdfast.cli.output import age, note, table


@click.group()
def token() -> None:
    """Make, list and revoke tokens.

    \b
    Examples:
      holdfast token create --role submit --name ci
      holdfast token create --role join          # for one `holdfast agent`
    """


@token.command()
@click.option("--role", type=click.Choice(["admin", "submit", "read", "join"]), required=True)
@click.option("--name", default="", help="Its purpose.")
@click.option("--user", default="", help="The owner of what it submits. [default: its name]")
@click.option("--expires", metavar="TIME", help="As 12h or 30d. [default: 1h for a join token]")
@talks
def create(face: Face, role: str, name: str, user: str, expires: str | None) -> None:
    """Make a token and print its secret, this once.

    \b
    Examples:
      holdfast token create --role submit --name ci --expires 90d
      holdfast token create --role submit --user alice --name "alice's laptop"
      holdfast agent --join URL --token "$(holdfast token create --role join)"
    """
    seconds = None
    if expires is not None:
        seconds = read_seconds("--expires", expires)
    with face.client() as client:
        made = client.create_token(role, name, seconds, user)
    face.show(made, made.secret)
    if not face.as_json:
        note(f"token {made.id} ({made.role}); its secret is not shown again")


@token.command("list")
@talks
def list_tokens(face: Face) -> None:
    """List tokens, without their secrets.

    \b
    Example:
      holdfast token list
    """
    with face.client() as client:
        rows = client.tokens()
    lines = []
    for t in rows:
        spent = t.role == "join" and t.used_at
        state = "revoked" if t.revoked_at else "spent" if spent else "good"
        user = "-" if t.role == "join" else t.acts_for
        ages = age(t.created_at), age(t.expires_at)
        lines.append((t.id, t.role, user, t.name or "-", state, *ages))
    head = ("ID", "ROLE", "USER", "NAME", "STATE", "AGE", "EXPIRES")
    face.show(rows, table(head, lines, elastic=3))


@token.command()
@click.argument("token_id", metavar="ID")
@talks
def revoke(face: Face, token_id: str) -> None:
    """End a token; it is refused within seconds.

    \b
    Example:
      holdfast token revoke 06ch2v8wq1m4kz7d9x3t
    """
    with face.client() as client:
        client.revoke_token(token_id)
    face.show({"revoked": token_id}, f"{token_id}: revoked")
