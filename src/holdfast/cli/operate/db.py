"""`db`: the schema of the database, which it reads and changes without a controller."""

from dataclasses import asdict

import click

from holdfast.cli.command_io import CommandIO
from holdfast.cli.extras import need_server

_DSN = click.option(
    "--dsn", envvar="HOLDFAST_DSN", metavar="DSN", help="The database. [default: HOLDFAST_DSN]"
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def db() -> None:
    """Migrate the database, or show its version. `up` and `server` migrate by themselves.

    \b
    Examples:
      holdfast db status --dsn postgresql://holdfast@db.example/holdfast
      holdfast db migrate --dsn postgresql://holdfast@db.example/holdfast
    """


def _dsn(dsn: str | None) -> str:
    if dsn:
        return dsn
    raise click.UsageError(
        "no database is given: use --dsn or HOLDFAST_DSN. `holdfast up` migrates its own."
    )


@db.command()
@_DSN
@_JSON
def migrate(dsn: str | None, as_json: bool) -> None:
    """Bring the schema up to date. It may run twice, or in two places at once.

    \b
    Example:
      holdfast db migrate --dsn postgresql://holdfast@db.example/holdfast
    """
    need_server()
    from holdfast.store.postgres.connection.migrate import migrate as apply

    done = apply(_dsn(dsn))
    CommandIO(as_json).show(
        {"applied": done}, "\n".join(f"applied {name}" for name in done) or "nothing to do"
    )


@db.command()
@_DSN
@_JSON
def status(dsn: str | None, as_json: bool) -> None:
    """Show the schema's version, the pending migrations, where the blobs are, and settings of the
    server that cost Holdfast speed, room or safety, each with its mend. Exit 1 if a migration is
    pending.

    \b
    Example:
      HOLDFAST_DSN=postgresql://holdfast@db.example/holdfast holdfast db status
    """
    need_server()
    from holdfast.store.postgres.connection.migrate import read_findings, read_status

    found = read_status(_dsn(dsn))
    findings = read_findings(_dsn(dsn))
    lines = [f"version {found.version}", *(f"pending {name}" for name in found.pending)]
    place, store = found.blobs
    lines += [f"blobs in {place} (store {store})"] if store else []
    lines += [str(finding) for finding in findings] or ["the server's settings suit Holdfast"]
    value = {
        "version": found.version,
        "applied": found.applied,
        "pending": found.pending,
        "blobs": {"place": place or None, "store": store or None},
        "findings": [asdict(finding) for finding in findings],
    }
    CommandIO(as_json).show(value, "\n".join(lines))
    if found.pending:
        raise SystemExit(1)
