"""Run `holdfast server`, a controller without the other parts of `up`."""

import os
from typing import Any

import click
import msgspec

from holdfast.cli.extras import need_linux, need_server
from holdfast.cli.up.up import DEFAULT_PORT
from holdfast.lean import collect_nothing


@click.command()
@click.option("--dsn", envvar="HOLDFAST_DSN", metavar="DSN", help="PostgreSQL, 14 or newer.")
@click.option("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT)
@click.option("--token-file", metavar="FILE", help="The first admin token; made if missing.")
@click.option("--tls-cert", metavar="FILE", help="PEM certificate chain.")
@click.option("--tls-key", metavar="FILE", help="PEM key.")
@click.option("--insecure-bind", is_flag=True, help="Allow a public address without TLS.")
@click.option(
    "--advertise",
    envvar="HOLDFAST_SERVER_ADVERTISE",
    metavar="URL",
    help="The address at which the other servers of this database reach this one. "
    "[default: where it listens; the machine's name for 0.0.0.0]",
)
@click.option(
    "--dashboard-url",
    "dashboard_urls",
    multiple=True,
    metavar="URL",
    help="An address of the dashboard in browsers, as https://holdfast.example.org; repeatable. "
    "[default: http://holdfast.localhost:PORT]",
)
@click.option(
    "--blobs",
    envvar="HOLDFAST_BLOBS",
    metavar="DIR|s3://BUCKET/PREFIX",
    help="The place of checkpoints, shared by all servers. "
    "[default: ~/.local/state/holdfast/blobs]",
)
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto")
def server(**options: Any) -> int:
    """Run the controller alone. Any number may share one database: all serve, one leads.

    The schema is migrated at the start. Agents join with `holdfast agent --join URL --token TOKEN`.

    \b
    Examples:
      holdfast server --dsn postgresql://holdfast@db/holdfast --token-file ./admin
      holdfast server --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
      holdfast server --blobs s3://team/holdfast   with AWS_ACCESS_KEY_ID, …
    """
    need_linux("server")
    need_server()
    if not options["dsn"]:
        raise click.UsageError(
            "no database is given: use --dsn or HOLDFAST_DSN. `holdfast up` brings its own."
        )
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key go together")
    return run_controller({name: value for name, value in options.items() if value is not None})


def run_controller(options: dict[str, Any]) -> int:
    """Serve the controller in this process until a signal stops it, and return the exit status."""
    with collect_nothing():
        from holdfast.controller.server import ServerConfig, run_server
        from holdfast.web.browsers import list_origins

    list_origins("http://127.0.0.1:1", options.get("dashboard_urls", ()))  # refused before all else
    if options.get("token_file"):
        path = os.path.abspath(os.path.expanduser(options["token_file"]))
        options = {**options, "token_file": path}
    return run_server(msgspec.convert(options, ServerConfig))
