"""`agent`: this machine as a host of a controller on another machine."""

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.cli import declare
from holdfast.cli.options import LABEL, add_options, read_pairs, read_seconds
from holdfast.cli.up.up import AGENT_OPTIONS, agent_options
from holdfast.errors import ValidationError
from holdfast.wire.bearer import is_token


@declare.command()
@declare.option(
    "--join", "url", envvar="HOLDFAST_URL", required=True, metavar="URL", help="The controller."
)
@declare.option("--token", envvar="HOLDFAST_JOIN_TOKEN", help="A join token, for the first start.")
@add_options(*AGENT_OPTIONS)
@declare.option(
    "--state", metavar="DIR", help="Its folder. [default: ~/.local/state/holdfast/host]"
)
@declare.option("--advertise", metavar="ADDRESS", help="This host's address for other hosts.")
@LABEL
@declare.option("--pool", envvar="HOLDFAST_POOL", help="The pool it belongs to. [default: none]")
@declare.option(
    "--self-destruct",
    envvar="HOLDFAST_SELF_DESTRUCT_SECONDS",
    metavar="TIME",
    help="End this host after so long without the controller. [default: never]",
)
@declare.option("--ca-file", metavar="FILE", help="PEM of the controller's authority.")
def agent(
    url: str,
    token: str | None,
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
      holdfast agent --join http://10.0.0.5:7878 --state /var/lib/holdfast --slots 8
      holdfast agent --join http://10.0.0.5:7878 --app mytasks --app-path /srv/pipeline
    """
    options = agent_options(**options)
    options |= {"url": url.rstrip("/"), "state_dir": str(_state_folder(state))}
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
    if token:
        token = token.strip()
        if not is_token(token):
            raise ValidationError(
                "--token is no token: it has a space, a line break or another character that no "
                "token has"
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
    """Write the token to a file, because a child's arguments and environment can be read."""
    from holdfast.process.files import write_atomic

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


def run_agent(options: dict[str, Any]) -> int:
    """Run the host's guardian in this process until a signal stops it; return the exit status."""
    gc.disable()  # what an import makes lives to the end: a collection would find nothing
    import msgspec

    import holdfast.agent.guardian.loop  # noqa: F401  `run_host` needs it, and no collection runs now
    from holdfast.agent.config import AgentConfig, run_host

    gc.enable()
    try:
        config = msgspec.convert(options, AgentConfig)
    except msgspec.ValidationError as error:
        from holdfast.wire.mismatch import refuse

        where = "the agent cannot be run like this"
        raise refuse(error, options, AgentConfig, where) from error
    return run_host(config)
