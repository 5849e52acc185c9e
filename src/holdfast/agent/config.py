"""Read the config of an agent, and make this machine a host: guardian and agent (`run_host`).

A config reaches every agent of a guardian as a file in the state folder. It names the files that
hold secrets (the join token, the host key), never the secrets themselves.
"""

import os
import re
import secrets
import socket
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.agent.guardian.child import EXIT_BAD_CONFIG as EXIT_BAD_CONFIG
from holdfast.agent.guardian.guardian_folder import GROUP_RECORD, SOCKET_RECORD
from holdfast.core.gpus import Gpu
from holdfast.core.spec import Name, ShortText
from holdfast.errors import ValidationError
from holdfast.http.addresses import read_addresses
from holdfast.process.files import (
    make_private_folder,
    read_bound,
    read_private,
    write_atomic,
    write_bound,
)

CONFIG_FILE = "agent.json"
MARK_FILE = "mark"
HOST_FILE = "host.json"

EXIT_DONE = 0
MountName = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")]


class HostMount(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A folder that this host offers to jobs (MOUNT-1): `path`, or a bucket that `tool` shows as a
    folder. bucket: BUCKET/PREFIX, for rclone REMOTE:BUCKET/PREFIX. write: jobs may write there."""

    path: str = ""
    bucket: str = ""
    tool: Literal["", "rclone", "s3fs", "mount-s3"] = ""
    write: bool = False


class AgentConfig(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The config of one host's agent.

    intent: the host that this machine was rented to be; "" if no pool rented it. url: the
    controller, `http://…` or `https://…`, a path prefix allowed; several of one cluster with commas
    between. state_dir: this host's own folder,
    made 0700. gpus: "auto" asks the drivers; a number declares so many devices; a list describes
    them. queues: the queues whose jobs it runs; empty for all. advertise: the address by which
    other hosts of a gang reach this one. ca_file: PEM of the authority that signed the controller's
    certificate; None for the system's. join_token_file: the file that is read when there is no host
    key yet; it may be replaced while the agent waits for a good token. probe: "real", or
    "scripted:MODULE:TEXT" in tests, for the probe that `open_probe(TEXT)` of a module makes.
    self_destruct_seconds: the time without an answer after which the host
    ends itself (SELF-1). apps: the apps whose calls its executors run, each a label `app/NAME`.
    app_python: the interpreter of executors; None for the agent's own. app_path: the working
    directory of executors, from which they import first; None for the folder in which the host was
    started. pass_env: names, or patterns of names (`WANDB_*`), of variables of the agent's own
    environment that tasks get beside the usual ones (ENV-1). mounts: the folders that jobs may mount
    by these names. cache_bytes: most bytes of jobs' caches that stay here. sessions: False where no
    user may come into the tasks of this host (`exec`, `shell`, `attach`, `port-forward`).
    learn_controllers: False where only those of `url` are to be called (LEARN-1).
    """

    url: str
    state_dir: str
    name: Name | None = None
    cpu_slots: Annotated[int, Meta(ge=0, le=65_536)] = 1
    memory_bytes: Annotated[int, Meta(ge=0)] | None = None
    gpus: Literal["auto"] | Annotated[int, Meta(ge=0, le=1024)] | list[Gpu] = "auto"
    queues: list[Name] = []
    labels: dict[Name, ShortText] = {}
    pool: Name | Literal[""] = ""
    intent: Annotated[str, Meta(max_length=128)] = ""
    advertise: ShortText | None = None
    ca_file: str | None = None
    join_token_file: str | None = None
    probe: Annotated[str, Meta(pattern=r"^(real|scripted:[\w.]+:.+)$")] = "real"
    log_format: Literal["json", "text"] = "json"
    frozen_seconds: Annotated[float, Meta(gt=0)] = 20.0
    die_with_parent: bool = False
    self_destruct_seconds: Annotated[float, Meta(gt=0)] | None = None
    apps: list[Name] = []
    app_python: str | None = None
    app_path: str | None = None
    pass_env: list[Annotated[str, Meta(min_length=1, max_length=256)]] = []
    mounts: dict[MountName, HostMount] = {}
    cache_bytes: Annotated[int, Meta(ge=0)] = 100 << 30
    sessions: bool = True
    learn_controllers: bool = True

    @property
    def host_labels(self) -> dict[str, str]:
        """Return the labels with which the host registers."""
        return {**self.labels, **{f"app/{app}": "yes" for app in self.apps}}

    @property
    def state_path(self) -> Path:
        """Return the path of the state folder."""
        return Path(self.state_dir)

    @property
    def host_path(self) -> Path:
        """Return the path of the file that keeps the host's id and key."""
        return self.state_path / HOST_FILE

    @property
    def host_name(self) -> str:
        """Return the name that was given, or this machine's name in the shape of a `Name`."""
        return self.name or clean_name(socket.gethostname())


def clean_name(text: str) -> str:
    """Return `text` as a name that the controller accepts: letters, digits and, not first,
    `._/-`."""
    cleaned = re.sub(r"[^A-Za-z0-9._/-]+", "-", text).lstrip("._/-")[:128]
    return cleaned or "host"


def check_config(config: AgentConfig) -> AgentConfig:
    """Check a config beyond its types. Raises ValidationError with the field."""
    read_addresses(config.url)
    if not os.path.isabs(config.state_dir):
        why = f"the state folder {config.state_dir!r} must be an absolute path"
        raise ValidationError(why, field="state_dir")
    for field in ("ca_file", "join_token_file", "app_python", "app_path"):
        path = getattr(config, field)
        if path is not None and not os.path.isabs(path):
            raise ValidationError(f"{path!r} must be an absolute path", field=field)
    for name, mount in config.mounts.items():
        if bool(mount.path) == bool(mount.bucket) or bool(mount.bucket) != bool(mount.tool):
            why = f"mount {name} is either a path, or a bucket and the tool that shows it"
            raise ValidationError(why, field="mounts")
        if mount.path and not os.path.isabs(mount.path):
            raise ValidationError(f"{mount.path!r} must be an absolute path", field="mounts")
    return config


def read_config(path: str) -> AgentConfig:
    """Read a config file. Raises ValidationError if it cannot be read or used."""
    try:
        return check_config(msgspec.json.decode(Path(path).read_bytes(), type=AgentConfig))
    except OSError as error:
        why = f"the agent's config {path} cannot be read: {error.strerror}"
        raise ValidationError(why) from error
    except msgspec.MsgspecError as error:
        raise ValidationError(f"the agent's config {path} cannot be used: {error}") from error


def read_mark(state_dir: Path) -> str:
    """Return the mark that this host's processes carry: random, made once per state folder.

    The mark is not the host's id, because a host has tasks to sweep even before it could register
    again. A mark that was written in part is made anew, because two hosts of one machine could have
    the same few letters, and each would sweep the other's tasks. The host of a copied folder would
    do that, too, so that the copy gets its own mark, and forgets the paths of the original's socket
    and control groups.
    """
    path = state_dir / MARK_FILE
    mark, copied = read_bound(path)
    if copied or not re.fullmatch("[0-9a-f]{16}", mark):
        for record in (SOCKET_RECORD, GROUP_RECORD) if copied else ():
            (state_dir / record).unlink(missing_ok=True)
        mark = secrets.token_hex(8)
        write_bound(path, mark)
    return mark


def run_host(config: AgentConfig) -> int:
    """Make this process the host's guardian, with the agent under it, until told to stop (TERM,
    INT). Return the exit status. Raises ValidationError, and OSError for a state folder that
    cannot be used."""
    from holdfast.agent.guardian.config import GuardianConfig
    from holdfast.agent.guardian.loop import run_guardian

    check_config(config)
    make_private_folder(config.state_path)
    path = config.state_path / CONFIG_FILE
    data = msgspec.json.format(msgspec.json.encode(config))
    if read_private(path) != data:  # a guardian has to start on a full disk, too
        write_atomic(path, data, durable=True)
    return run_guardian(
        GuardianConfig(
            state_dir=config.state_path,
            host_id=read_mark(config.state_path),
            agent_argv=[sys.executable, "-P", "-m", "holdfast.agent", str(path)],
            frozen_seconds=config.frozen_seconds,
            die_with_parent=config.die_with_parent,
        )
    )
