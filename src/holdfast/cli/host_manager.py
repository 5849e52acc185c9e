"""`host-manager`: this machine joins a supervised run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.extras import need_linux
from holdfast.cli.options import LABEL, SECONDS, read_pairs
from holdfast.cli.up.up import read_gpus
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.supervisor.line.keys import ManagerKey


@click.command("host-manager")
@click.argument("url")
@click.option(
    "--key-file", metavar="FILE", help="The run's key. [default: HOLDFAST_SUPERVISOR_KEY]"
)
@click.option(
    "--name", metavar="NAME", help="This machine's name. [default: Slurm's, or the host name]"
)
@click.option(
    "--advertise",
    "address",
    metavar="ADDRESS",
    help="This machine's address for the others. [default: detected]",
)
@click.option("--gpus", metavar="N|auto", default="auto", help="GPUs to offer.")
@LABEL
@click.option(
    "--wait",
    "patience_seconds",
    type=SECONDS,
    default=600.0,
    metavar="SECONDS",
    help="The wait for the supervisor and the key file.",
)
@click.option(
    "--usage-interval",
    "usage_seconds",
    type=SECONDS,
    default=30.0,
    metavar="SECONDS",
    help="Between samples of usage; 0 takes none.",
)
@click.option("--log-file", metavar="FILE", help="The log of pids and usage. [default: stderr]")
@click.option(
    "--term-grace",
    "term_grace_seconds",
    type=SECONDS,
    metavar="SECONDS",
    help="The processes get TERM by themselves, and KILL after so long. [default: the host manager "
    "sends TERM, and KILL 5 s later]",
)
def host_manager(url: str, **options: Any) -> int:
    """Make this machine a host of the policy script at URL (tcp://ADDRESS:PORT).

    The script's `ctx.manager_command()` gives the whole command. Start it before the script or after
    it: by hand, srun, ssh or anything else. When it ends, the script's processes on this machine
    end too.

    \b
    Examples:
      holdfast host-manager tcp://node0:55555 --key-file /shared/run/manager-key
      srun holdfast host-manager tcp://node0:55555 --key-file /shared/manager-key

    \b
    Exit codes: 0 the script gave this host back or has ended; 70 the script fell
    silent; 71 no script was found; 72 this host was replaced; 73 it was given up;
    74 internal error.
    """
    need_linux("host-manager")
    labels = read_pairs("--label", options.pop("labels"))
    gpus = None if options["gpus"] == "auto" else read_gpus(options["gpus"])
    patience = options.pop("patience_seconds")
    began = time.monotonic()
    key = _read_key(options["key_file"], patience)
    patience = max(1.0, patience - (time.monotonic() - began))
    from holdfast.supervisor.host.config import ManagerConfig
    from holdfast.supervisor.host.host_manager import run_host_manager

    given = {**options, "labels": labels, "gpus": gpus, "patience_seconds": patience}
    return run_host_manager(ManagerConfig(url=url, key=key, **given))


def _read_key(path: str | None, patience: float) -> ManagerKey | None:
    """Read the key from the environment, or from the file, which the script may yet have to write."""
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
