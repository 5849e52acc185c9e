"""`host-manager`: this machine joins a supervised run."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.up.command import read_gpus

if TYPE_CHECKING:
    from holdfast.supervisor.line.keys import ManagerKey


@click.command("host-manager")
@click.argument("url")
@click.option(
    "--key-file",
    metavar="FILE",
    help="The run's key; else HOLDFAST_SUPERVISOR_KEY holds its content.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="The machine's name as the script sees it; else Slurm's for the node, else its host name.",
)
@click.option(
    "--advertise",
    metavar="ADDRESS",
    help="This machine's address as the others reach it; else found out.",
)
@click.option("--gpus", metavar="N|auto", default="auto", show_default=True, help="GPUs to offer.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="A label; repeatable.")
@click.option(
    "--wait",
    "patience",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to look for the supervisor, and for the key file, at first.",
)
@click.option(
    "--usage-interval",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Between samples of what processes use; 0 for none.",
)
@click.option(
    "--log-file",
    metavar="FILE",
    help="The pid and resource log, JSON lines; standard error otherwise.",
)
@click.option(
    "--term-grace",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="For where TERM comes to the processes too: they have so long until KILL. Else they get "
    "one, and 5 s.",
)
@click.option(
    "--simulate",
    type=click.IntRange(1),
    metavar="N",
    help="Be N simulated hosts, for tests of scale.",
)
def host_manager(
    url: str,
    key_file: str | None,
    name: str | None,
    advertise: str | None,
    gpus: str,
    labels: Sequence[str],
    patience: float,
    usage_interval: float,
    log_file: str | None,
    term_grace: float | None,
    simulate: int | None,
) -> int:
    """Make this machine a host of the policy script at URL (tcp://ADDRESS:PORT).

    The script's `ctx.manager_command()` is the whole command. Start it by hand, by srun, by ssh, or
    by anything; before the script or after it. Processes of the script end with it, however it
    ends.

    \b
    Examples:
      holdfast host-manager tcp://node0:55555 --key-file /shared/run/manager-key
      srun holdfast host-manager tcp://node0:55555 --key-file /shared/run/manager-key

    \b
    Exit codes: 0 the script gave this host back or is done; 70 the script fell silent;
    71 none was found; 72 this host was replaced; 73 it was given up; 74 internal.
    """
    from holdfast.errors import ValidationError

    pairs = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals:
            raise ValidationError(f"--label {label!r} is not K=V", field="labels")
        pairs[key] = value
    count = None if gpus == "auto" else read_gpus(gpus)
    began = time.monotonic()
    run_key = _read_key(key_file, patience)
    patience = max(1.0, patience - (time.monotonic() - began))
    if simulate is not None:
        from holdfast.supervisor.host.simulated_fleet import run_simulated_fleet

        return run_simulated_fleet(url, run_key, simulate, name or "sim", patience)
    from holdfast.supervisor.host.host_manager import ManagerConfig, run_host_manager

    config = ManagerConfig(
        url=url,
        key=run_key,
        key_file=key_file,
        name=name,
        address=advertise,
        labels=pairs,
        gpus=count,
        patience_seconds=patience,
        usage_seconds=usage_interval,
        log_file=log_file,
        term_grace_seconds=term_grace,
    )
    return run_host_manager(config)


def _read_key(path: str | None, patience: float) -> ManagerKey | None:
    """The key from the environment or from the file, which the script may be about to write."""
    from holdfast.errors import ValidationError
    from holdfast.supervisor.line.keys import KEY_VARIABLE, parse_manager_key

    if path is None:
        text = os.environ.get(KEY_VARIABLE)
        return parse_manager_key(text) if text else None
    deadline = time.monotonic() + patience
    while True:
        try:
            return parse_manager_key(Path(path).read_bytes())
        except FileNotFoundError:
            if time.monotonic() >= deadline:
                raise ValidationError(
                    f"there is no key file {path}; is the script running?", field="key_file"
                ) from None
        except OSError as error:
            raise ValidationError(
                f"the key file {path} cannot be read: {error.strerror}", field="key_file"
            ) from error
        time.sleep(0.1)
