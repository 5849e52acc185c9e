"""`ssh-config`: ssh, scp, rsync and editors into running tasks."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.commands import PROGRAM
from holdfast.cli.find.jobs import find_job
from holdfast.cli.output import note, print_text
from holdfast.cli.sessions.exec import leave
from holdfast.cli.sessions.ssh_keys import ALIAS, hold_keys
from holdfast.cli.sessions.terminal import carry, tell_lost
from holdfast.errors import HoldfastError, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client

_NAME = re.compile(
    r"(?:rank(?P<rank>[0-9]{1,5})\.)?(?P<job>[A-Za-z0-9][A-Za-z0-9._-]{0,200})\.holdfast"
)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_TEXT = """\
# Written by `holdfast ssh-config`. JOB.holdfast is a running job: its id, the beginning of its id, or its
# name; last.holdfast the last one; rank3.JOB.holdfast a task of a gang.
Match host *.holdfast exec "{program} --user-of '%n'"
  Include "{keys}/*.user"
Host *.holdfast
  ProxyCommand {program} --proxy '%n'
  IdentityFile "{keys}/%n/user"
  IdentitiesOnly yes
  IdentityAgent none
  PreferredAuthentications publickey
  HostKeyAlias {alias}
  UserKnownHostsFile "{keys}/%n/known_hosts"
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  CheckHostIP no
  UpdateHostKeys no
"""


@click.command()
@click.option("--write", is_flag=True, help="Write it to ~/.ssh/holdfast.config.")
@click.option("--proxy", metavar="NAME", help="What ssh itself runs: carry one connection.")
@click.option("--user-of", metavar="NAME", help="What ssh itself runs: learn the job's user.")
@talks
def ssh_config(io: CommandIO, write: bool, proxy: str | None, user_of: str | None) -> None:
    """Print the lines with which ssh, scp, rsync and VS Code go into running jobs.

    They connect by a session, as `holdfast exec` does: to an `sshd` that is begun for that one
    connection, inside of the job, as its user, with keys of its own. The job's host or image needs
    openssh-server; it is not configured, and its own server is not used.

    \b
    Examples:
      holdfast ssh-config --write
      ssh JOB.holdfast
      scp JOB.holdfast:out/model.pt .
      rsync -a src/ rank3.JOB.holdfast:src/
    """
    if proxy is not None:
        _carry(io, proxy)
    elif user_of is not None:
        _learn_user(io, user_of)
    elif write:
        path = Path.home() / ".ssh" / "holdfast.config"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(_make_text(io))
        print_text(str(path))
        note(
            f"ssh reads it where ~/.ssh/config has, on top of all others, the line: Include {path}"
        )
    else:
        print_text(_make_text(io).rstrip("\n"))


def find_keys_folder() -> Path:
    """Return the folder of the keys of sessions at work."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "holdfast" / "ssh"


def _make_text(io: CommandIO) -> str:
    beside = Path(sys.executable).parent / PROGRAM
    words = [str(beside)] if beside.exists() else [sys.executable, "-P", "-m", "holdfast.cli"]
    words.append("ssh-config")
    if io.context:
        words += ["-c", io.context]
    if io.url:
        words += ["--url", io.url]
    if io.token_file:
        words += ["--token-file", str(Path(io.token_file).absolute())]
    program = shlex.join(words).replace("%", "%%")
    return _TEXT.format(program=program, keys=find_keys_folder(), alias=ALIAS)


def read_name(name: str) -> tuple[str, int]:
    """Return the job and the rank that a host's name names. Raises ValidationError."""
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValidationError(
            f"{name[:80]!r} names no job: JOB.holdfast, or rank3.JOB.holdfast", field="name"
        )
    job = found["job"]
    return "@last" if job == "last" else job, int(found["rank"] or 0)


def _carry(io: CommandIO, name: str) -> None:
    """Carry ssh's bytes between this program's pipes and an `sshd` in the task."""
    job, rank = read_name(name)
    with io.client() as client, hold_keys(find_keys_folder() / name) as told:
        session = client.open_session(
            find_job(client, job), ["sshd"], kind="ssh", rank=rank, on_lost=tell_lost
        )
        io.waiting.close()
        session.write(told)
        code = carry(session)
    leave(code)


def _learn_user(io: CommandIO, name: str) -> None:
    """Write down as which user ssh logs in. Problems are told when ssh connects."""
    path = find_keys_folder() / f"{name}.user"
    try:
        job, rank = read_name(name)
        with io.client() as client:
            user = _ask_user(client, find_job(client, job), rank)
    except HoldfastError:
        return
    if _USER.fullmatch(user):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(f"Host {name}\n  User {user}\n")
        fresh.replace(path)


def _ask_user(client: Client, job_id: str, rank: int) -> str:
    with client.open_session(job_id, ["id", "-un"], rank=rank, linger_seconds=0) as session:
        session.close_stdin()
        return b"".join(data for stream, data in session if stream == "stdout").decode().strip()
