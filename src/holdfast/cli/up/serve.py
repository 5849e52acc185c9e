"""`server` and `agent`: the parts of `up` on machines of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.cli.up.command import DEFAULT_PORT, agent_options
from holdfast.errors import ValidationError
from holdfast.wire.bearer import is_token


@click.command()
@click.option(
    "--dsn", envvar="HOLDFAST_DSN", metavar="DSN", help="PostgreSQL 14 or newer; else HOLDFAST_DSN."
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all."
)
@click.option("--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True)
@click.option(
    "--token-file",
    metavar="FILE",
    help="Where the first admin token is kept (0600), made when missing.",
)
@click.option("--tls-cert", metavar="FILE", help="PEM certificate chain.")
@click.option("--tls-key", metavar="FILE", help="PEM key.")
@click.option(
    "--insecure-bind", is_flag=True, help="Allow an address that others reach without TLS."
)
@click.option(
    "--blobs",
    envvar="HOLDFAST_BLOBS",
    metavar="DIR|s3://BUCKET/PREFIX",
    help="Where checkpoints are kept, shared by all servers; else ~/.local/state/holdfast/blobs.",
)
@click.option(
    "--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True
)
def server(**options: Any) -> int:
    """Run the controller alone. Any number may share one database: all serve, one leads.

    The schema is migrated at the start. Agents join with `holdfast agent --join URL --token TOKEN`.

    \b
    Examples:
      holdfast server --dsn postgresql://holdfast@db/holdfast --token-file ./admin-token
      holdfast server --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem   # HOLDFAST_DSN is set
      holdfast server --blobs s3://team/holdfast      # credentials: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …
    """
    from holdfast.cli.extras import need_server

    need_server()
    if not options["dsn"]:
        raise click.UsageError(
            "which database? Give --dsn or set HOLDFAST_DSN. `holdfast up` brings its own."
        )
    if bool(options["tls_cert"]) != bool(options["tls_key"]):
        raise click.UsageError("--tls-cert and --tls-key go together")
    return run_controller({name: value for name, value in options.items() if value is not None})


def run_controller(options: dict[str, Any]) -> int:
    """Serve the controller in this process until told to stop."""
    import msgspec

    from holdfast.controller.server import ServerConfig, run_server

    if options.get("token_file"):
        options = {
            **options,
            "token_file": os.path.abspath(os.path.expanduser(options["token_file"])),
        }
    return run_server(msgspec.convert(options, ServerConfig))


@click.command()
@click.option("--join", "url", required=True, metavar="URL", help="The controller.")
@click.option(
    "--token", envvar="HOLDFAST_JOIN_TOKEN", help="A join token; needed the first time only."
)
@click.option(
    "--slots",
    type=click.IntRange(0, 65_536),
    help="CPU tasks at once; the number of CPUs otherwise.",
)
@click.option("--gpus", metavar="N|auto", default="auto", show_default=True, help="GPUs to offer.")
@click.option("--queues", metavar="Q,Q", help="Queues served; every queue otherwise.")
@click.option("--name", help="The host's name; this machine's otherwise.")
@click.option(
    "--state", metavar="DIR", help="This host's own folder; else ~/.local/state/holdfast/host."
)
@click.option(
    "--advertise", metavar="ADDRESS", help="What other hosts of a gang reach this one by."
)
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label; repeatable.")
@click.option("--pool", help="The pool it belongs to; `local` otherwise.")
@click.option(
    "--ca-file",
    metavar="FILE",
    help="PEM of the authority that signed the controller's certificate.",
)
def agent(
    url: str,
    token: str | None,
    slots: int | None,
    gpus: str,
    queues: str | None,
    name: str | None,
    state: str | None,
    advertise: str | None,
    labels: Sequence[str],
    pool: str | None,
    ca_file: str | None,
) -> int:
    """Run an agent: this machine becomes a host of the controller at URL.

    The join token is exchanged for a key kept in the state folder; after that the agent needs no
    token. TERM ends
    it: tasks get TERM and their grace, and are requeued elsewhere. A second TERM ends them at once.

    \b
    Examples:
      holdfast agent --join https://holdfast.example --token hfj_… --queues gpu
      holdfast agent --join http://10.0.0.5:7878 --state /var/lib/holdfast --slots 8
    """
    options = agent_options(slots=slots, gpus=gpus, queues=queues, name=name)
    options |= {"url": url.rstrip("/"), "state_dir": str(_state_folder(state))}
    pairs = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals:
            raise ValidationError(f"--label {label!r} is not K=V", field="labels")
        pairs[key] = value
    more = {"labels": pairs, "advertise": advertise, "pool": pool}
    options |= {key: value for key, value in more.items() if value}
    if ca_file is not None:
        options["ca_file"] = os.path.abspath(os.path.expanduser(ca_file))
    if token:
        token = token.strip()
        if not is_token(token):
            raise ValidationError(
                "--token is no token: it has a space, a line break or another character that none "
                "has"
            )
        options["join_token_file"] = str(_keep_token(Path(options["state_dir"]), token))
    options["log_format"] = "text" if os.isatty(2) else "json"
    return run_agent(options)


def _state_folder(given: str | None) -> Path:
    if given is not None:
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "holdfast" / "host"


def _keep_token(folder: Path, token: str) -> Path:
    """The token travels in a file, never in a child's arguments or environment."""
    from holdfast.cli.up.folder import write_private

    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "join"
        write_private(path, token + "\n")
    except OSError as error:
        raise ValidationError(
            f"the state folder {folder} cannot be used: {error.strerror}. Name another with "
            "--state.",
            field="state",
        ) from error
    return path


def run_agent(options: dict[str, Any]) -> int:
    """Make this process the host's guardian until told to stop."""
    import msgspec

    from holdfast.agent.config import AgentConfig, run_host

    try:
        config = msgspec.convert(options, AgentConfig)
    except msgspec.ValidationError as error:
        raise ValidationError(f"the agent cannot be run like this: {error}") from error
    return run_host(config)
