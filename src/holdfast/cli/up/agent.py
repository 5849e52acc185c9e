"""Run `holdfast agent`, which makes this machine a host of a controller on another machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.cli.extras import need_linux
from holdfast.cli.options import LABEL, add_options, read_pairs, read_seconds
from holdfast.cli.up.run_part import run_agent
from holdfast.cli.up.up import AGENT_OPTIONS, agent_options
from holdfast.client import Client
from holdfast.errors import HoldfastError, Unauthorized, ValidationError
from holdfast.http.addresses import split_urls
from holdfast.process.files import write_atomic
from holdfast.wire.bearer import is_token


@click.command()
@click.option(
    "--join",
    "url",
    envvar="HOLDFAST_URL",
    required=True,
    metavar="URL",
    help="The controller, or several of one cluster with commas between.",
)
@click.option("--token", envvar="HOLDFAST_JOIN_TOKEN", help="A join token, for the first start.")
@click.option(
    "--token-file",
    envvar="HOLDFAST_JOIN_TOKEN_FILE",
    metavar="FILE",
    help="A file with it, so that no list of processes shows it.",
)
@add_options(*AGENT_OPTIONS)
@click.option("--state", metavar="DIR", help="Its folder. [default: ~/.local/state/holdfast/host]")
@click.option("--advertise", metavar="ADDRESS", help="This host's address for other hosts.")
@LABEL
@click.option("--pool", envvar="HOLDFAST_POOL", help="The pool it belongs to. [default: none]")
@click.option(
    "--self-destruct",
    envvar="HOLDFAST_SELF_DESTRUCT_SECONDS",
    metavar="TIME",
    help="End this host after so long without the controller. [default: never]",
)
@click.option(
    "--ca-file",
    envvar="HOLDFAST_CA_FILE",
    metavar="FILE",
    help="PEM of the controller's authority. [default: the machine's]",
)
def agent(
    url: str,
    token: str | None,
    token_file: str | None,
    state: str | None,
    labels: Sequence[str],
    ca_file: str | None,
    advertise: str | None,
    pool: str | None,
    self_destruct: str | None,
    **options: Any,
) -> int:
    """Run an agent: this machine becomes a host of the controller at URL.

    The join token is exchanged for a key kept in the state folder; after that the agent needs no
    token. TERM ends it: tasks get TERM and their grace, and are requeued elsewhere. A second TERM
    ends them at once.

    \b
    Examples:
      holdfast agent --join https://holdfast.example --token hfj_… --queues gpu
      holdfast agent --join http://10.0.0.5:7878 --state /var/lib/holdfast
      holdfast agent --join http://10.0.0.5:7878 --app mytasks --app-path /srv/app
    """
    need_linux("agent")
    options = agent_options(**options)
    urls = ",".join(split_urls(url))
    options |= {"url": urls, "state_dir": str(find_state_folder(state))}
    intent = os.environ.get("HOLDFAST_INTENT")
    more: dict[str, Any] = {"advertise": advertise, "pool": pool, "intent": intent}
    if self_destruct:
        more["self_destruct_seconds"] = read_seconds(
            "--self-destruct", self_destruct, "self_destruct_seconds"
        )
    options |= {name: value for name, value in more.items() if value}
    if labels:
        options["labels"] = read_pairs("--label", labels)
    if ca_file is not None:
        options["ca_file"] = os.path.abspath(os.path.expanduser(ca_file))
    if token and token_file:
        raise click.UsageError("--token and --token-file are two ways to say one thing")
    if token_file:
        token = _read_token(token_file)
    if token:
        hide_argument(token)
        token = token.strip()
        if not is_token(token):
            raise ValidationError(
                "--token is no token: it has a space, a line break or another character that no "
                "token has"
            )
        folder = Path(options["state_dir"])
        if not (folder / "host.json").exists():
            _try_token(options["url"], token, options.get("ca_file"))
        options["join_token_file"] = str(_keep_token(folder, token))
    options["log_format"] = "text" if os.isatty(2) else "json"
    return run_agent(options)


def _read_token(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(errors="replace")
    except OSError as error:
        raise ValidationError(
            f"the token file {path} cannot be read: {error.strerror}", field="token_file"
        ) from error


def hide_argument(word: str) -> None:
    """Write asterisks over an argument of this process, because every user of the machine can
    list arguments. If that fails, the token stays visible, but it is good for one host only."""
    hidden = word.encode()
    try:
        arguments = Path("/proc/self/cmdline").read_bytes()
        numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        at, found = int(numbers[_ARGUMENTS_FIELD]), arguments.find(hidden)
        if found >= 0:
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(at + found)
                memory.write(b"*" * len(hidden))
    except (OSError, ValueError, IndexError):
        pass


_ARGUMENTS_FIELD = 45  # arg_start, among the fields of /proc/PID/stat behind the name


def _try_token(url: str, token: str, ca_file: str | None) -> None:
    """Raise Unauthorized for a join token that the controller does not know. If the controller
    cannot be reached, the agent waits for it later."""
    try:
        with Client(url, token, retry_seconds=0.0, timeout_seconds=5.0, ca_file=ca_file) as client:
            client.whoami()
    except Unauthorized as error:
        if error.code == "join_token":
            return
        raise Unauthorized(
            f"the controller at {url} does not take this join token ({error.message}). Make one there "
            "with `holdfast token create --role join`; each is good for one host"
        ) from error
    except HoldfastError:
        return
    raise Unauthorized("this is a user's token; a host joins with one of --role join")


def find_state_folder(given: str | None) -> Path:
    """Return the folder of this machine's agent: the one given, or the usual one."""
    if given is not None:
        return Path(given).expanduser().absolute()
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(home) / "holdfast" / "host"


def _keep_token(folder: Path, token: str) -> Path:
    """Write the token to a file, because a child's arguments and environment can be read."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "join"
        write_atomic(path, f"{token}\n".encode())
    except OSError as error:
        raise ValidationError(
            f"the state folder {folder} cannot be used: {error.strerror}. Name another with "
            "--state.",
            field="state",
        ) from error
    return path
