"""The settings that Holdfast gives a policy script which it runs: port, keys, number of hosts.

`holdfast supervise` runs the script with a file named in the environment; for `Context` that file
overrides the script's own settings, so that a script written for another cluster runs unchanged.
"""

import ipaddress
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.errors import ValidationError
from holdfast.supervisor.line.keys import RunKeys, write_private

RUN_VARIABLE = "HOLDFAST_SUPERVISOR_RUN"
EPOCH_VARIABLE = "HOLDFAST_EPOCH"
ANYWHERE = ("*", "0.0.0.0", "::")


class GivenRun(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a supervised job, as its script's context needs it.

    port, address: the address that managers dial, which is this machine's as the other hosts reach
    it. hosts: the number of the job's hosts. term_grace_seconds: the time that processes have when
    their manager gets TERM. metrics: the address at which to serve metrics, `PORT` or
    `ADDRESS:PORT`; empty for none.
    """

    keys: RunKeys
    port: int
    address: str
    hosts: int
    term_grace_seconds: float = 0.0
    metrics: str = ""

    def choose_bind(self, bind: str) -> str:
        """Return an address to listen on that this machine's manager and the other hosts' managers
        reach.

        An address that the script names may belong to another machine at the next attempt, and the
        advertised one need not be one of this machine's own.
        """
        if is_loopback(self.address) and bind not in ANYWHERE:
            return "127.0.0.1" if self.address == "localhost" else self.address
        return "::" if ":" in self.address else "0.0.0.0" if bind not in ANYWHERE else bind


def is_loopback(address: str) -> bool:
    """Return True for addresses that only this machine reaches."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def write_given(path: Path, given: GivenRun) -> None:
    """Write the file for the script (0600: it holds the run's secret keys)."""
    write_private(path, msgspec.json.encode(given) + b"\n")


def read_given(environ: Mapping[str, str]) -> GivenRun | None:
    """Read the settings that Holdfast gives this script; None where Holdfast does not run it.

    Raises:
        ValidationError: the file is missing or holds no such settings.
    """
    name = environ.get(RUN_VARIABLE)
    if not name:
        return None
    try:
        return msgspec.json.decode(Path(name).read_bytes(), type=GivenRun)
    except (OSError, msgspec.MsgspecError) as error:
        raise ValidationError(
            f"{RUN_VARIABLE} names {name}, which cannot be read ({error}); `holdfast supervise` "
            "writes it for the script alone",
            field=RUN_VARIABLE,
        ) from error


def read_shared_words(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the script sets in the environment of every process.

    The manager of a replaced host runs under a later epoch than the others. The epoch fences the
    manager's reports, and concerns no process that runs there.
    """
    return {name: environ[name] for name in (EPOCH_VARIABLE,) if name in environ}


def parse_listen(text: str) -> tuple[str, int]:
    """Parse `PORT` (on loopback) or `ADDRESS:PORT`. Raises ValidationError."""
    address, colon, port = text.rpartition(":")
    whole = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not whole or (colon and not address):
        raise ValidationError(f"{text!r} is neither PORT nor ADDRESS:PORT", field="metrics_port")
    return address.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
