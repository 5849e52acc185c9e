"""`submit`, and the options that it shares with `run`."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.code.workdir import (
    CODE_OPTIONS,
    SETUP_OPTIONS,
    UNSENT,
    note_left_behind,
    send_workdir,
    take_workdir,
)
from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_parent, remember_job
from holdfast.cli.jobs.arrays import submit_many
from holdfast.cli.jobs.flags import (
    CONTAINER_OPTIONS,
    DATA_OPTIONS,
    GANG_OPTIONS,
    POLICY_OPTIONS,
    read_data,
    read_gang,
    read_policy,
)
from holdfast.cli.options import LABEL, POSITIVE, add_options, read_pairs
from holdfast.cli.output import note
from holdfast.client.specs import build_spec, parse_start, read_env, read_env_files, read_secrets
from holdfast.core.spec import MAX_STDIN_BYTES
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.locate import ControllerPlace
    from holdfast.core.spec import JobSpec
    from holdfast.wire.api import JobLimits

ABOUT_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option("--name", help="A name to show. [default: the program's or its script's]"),
    click.option("--queue", help="The queue. [default: the cluster's first that fits]"),
    click.option("--project", help="The project that pays. [default: default]"),
    click.option("--priority", type=int, help="0 to 100, higher first. [default: 50]"),
)


class GpuCount(click.ParamType[int]):
    """A number of GPUs; "all", as docker has it, is no number, because hosts have different ones."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number. Raises click.BadParameter."""
        try:
            return int(value)
        except ValueError:
            self.fail(
                f"{value!r} is no number of GPUs; `holdfast hosts` shows how many each host has",
                param,
                ctx,
            )


_GPUS = click.option("--gpus", type=GpuCount(), help="Whole GPUs.")
NEED_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option("--cpus", type=int, help="CPU slots; 1 for a job without GPUs."),
    click.option("--memory", metavar="SIZE", help="Memory, as 512M or 4G."),
    LABEL,
    click.option(
        "--env",
        multiple=True,
        metavar="K[=V]",
        help="A variable; K alone takes this shell's value.",
    ),
    click.option(
        "--env-file",
        "env_files",
        multiple=True,
        metavar="FILE",
        help="Variables, a line K=V each; --env wins over them.",
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="K[=V|=@FILE]",
        help="A variable that is never shown, redacted in logs.",
    ),
    click.option(
        "--cwd", metavar="DIR", help="Working folder. [default: this one, for a local controller]"
    ),
    click.option(
        "--fresh-workdir", is_flag=True, default=None, help="Start each attempt in an empty folder."
    ),
    click.option(
        "--fail-on",
        metavar="PATTERN",
        help="Fail at exit code 0, too, if a line of output matches.",
    ),
    click.option(
        "--time-limit",
        metavar="TIME",
        help="Stop it after 90s, 2h, …; off: never. [default: its queue's or project's, or none]",
    ),
    click.option(
        "--expected",
        metavar="TIME",
        help="How long it should take: it may start sooner by it, and is never stopped by it.",
    ),
    click.option("--stall-timeout", metavar="TIME", help="Silence that raises suspicion, or off."),
    click.option(
        "--silence-limit", metavar="TIME", help="Silence that stops it without evidence, or off."
    ),
    click.option(
        "--on-standstill",
        type=click.Choice(["ignore", "tell", "stop"]),
        help="When a step or printed bar stands beside idle hardware. [default: tell]",
    ),
    click.option(
        "--first-beat-timeout",
        metavar="TIME",
        help="Time to its first beat, or off. [default: off]",
    ),
    click.option(
        "--idle-timeout",
        metavar="TIME",
        help="With -it: end after so long without a key, traffic and GPU work, or off.",
    ),
    click.option("--grace", metavar="TIME", help="Time between TERM and KILL."),
    click.option(
        "--stop-tells",
        type=click.Choice(["main", "tree"]),
        help="Which processes hear a stop first. [default: main]",
    ),
    click.option(
        "--watchdog-cap", type=int, help="Watchdog trips after which it is still requeued."
    ),
)
START_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option("--lease-ttl", metavar="TIME", help="How long a silent host runs it, 15s to 1h."),
    click.option("--idempotency-key", metavar="KEY", help="The same key returns the first job."),
    click.option(
        "--start-at", metavar="TIME", help="Not before: +10m, an ISO time or Unix seconds."
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="JOB[:END]",
        help="Not before that job has ended ok (or :any, :failed); repeatable.",
    ),
)
_OPTIONS = (
    *ABOUT_OPTIONS,
    _GPUS,
    *NEED_OPTIONS,
    *GANG_OPTIONS,
    *POLICY_OPTIONS,
    *CONTAINER_OPTIONS,
    *CODE_OPTIONS,
    *SETUP_OPTIONS,
    *DATA_OPTIONS,
    *START_OPTIONS,
    click.option(
        "--stdin",
        metavar="FILE",
        help="What it reads as its standard input, up to 64 MiB; - is this command's.",
    ),
    click.option("--shell", metavar="LINE", help="A command line for /bin/sh, instead of CMD."),
    click.option("--file", "file", metavar="FILE", help="A job in TOML or YAML, under the flags."),
    click.argument("command", nargs=-1, metavar="[-- CMD [ARGS]...]"),
)


# The variables of an activated environment: the job's `python` is the `python` of this shell.
_SHELL_VARIABLES = (
    "PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONPATH", "LD_LIBRARY_PATH",
)  # fmt: skip
_PLAIN = (
    "name", "queue", "project", "priority", "gpus", "cpus", "watchdog_cap", "idempotency_key", "cwd",
    "fresh_workdir", "stop_tells", "on_standstill", "fail_on",
)  # fmt: skip
_LIMITS = (
    "memory", "time_limit", "expected", "stall_timeout", "silence_limit", "first_beat_timeout", "grace", "lease_ttl",
    "idle_timeout",
)  # fmt: skip


takes_spec = add_options(*_OPTIONS)
"""Adds the options of a job."""


def read_job(client: Client, options: Mapping[str, Any]) -> JobSpec:
    """Make a spec of the flags, send the folder that goes with it, and keep its standard input.
    Raises ValidationError."""
    fields = read_file(options["file"]) if options["file"] else {}
    workdir = take_workdir(fields, options)
    if workdir is not None:
        fields["code"] = UNSENT
    spec = read_spec(client.place, options, os.environ, time.time(), fields)
    note_left_behind(spec)
    return with_input(client, send_workdir(client, spec, workdir), options["stdin"])


def read_spec(
    place: ControllerPlace,
    options: Mapping[str, Any],
    environ: Mapping[str, str],
    now: float,
    fields: dict[str, Any] | None = None,
) -> JobSpec:
    """Make a spec of the flags, over `fields` or those of the file. `now` is Unix seconds.

    Raises:
        ValidationError: naming the flag or the field.
    """
    if fields is None:
        fields = read_file(options["file"]) if options["file"] else {}
    for name in _PLAIN:
        if options[name] is not None:
            fields[name] = options[name]
    if options.get("detached"):
        fields["detached"] = True
    if options.get("attended"):
        fields |= {"attended": True, "interactive": True}
    if options.get("terminal"):
        fields |= {"terminal": True, "interactive": True}
        fields["env"] = {"TERM": environ.get("TERM", "xterm")} | dict(fields.get("env") or {})
    for name in _LIMITS:
        if options[name] is not None:
            for other in (f"{name}_seconds", f"{name}_bytes"):
                fields.pop(other, None)
            fields[name] = options[name]
    if options["start_at"] is not None:
        fields["start_at"] = options["start_at"]
    if isinstance(fields.get("start_at"), str):
        try:
            fields["start_at"] = parse_start(fields["start_at"], now)
        except ValueError as error:
            raise ValidationError(f"start_at: {error}", field="start_at") from None
    if options["after"]:
        fields["after"] = [*(fields.get("after") or ()), *options["after"]]
    for name in ("setup", "python"):
        if options.get(name) is not None:
            fields[name] = options[name]
    if options.get("setup_timeout") is not None:
        fields.pop("setup_seconds", None)
        fields["setup_timeout"] = options["setup_timeout"]
    if options.get("setup_files"):
        fields["setup_files"] = list(options["setup_files"])
    read_gang(fields, options)
    read_policy(fields, options)
    read_data(fields, options)
    _merge(fields, "labels", read_pairs("--label", options["labels"]))
    _merge(fields, "host_labels", read_pairs("--host-label", options["host_labels"], "host_labels"))
    _merge(fields, "env", read_env_files(options.get("env_files") or ()))
    _merge(fields, "env", read_env(options["env"], environ))
    _merge(fields, "secrets", read_secrets(options["secrets"], environ))
    _read_command(fields, options["command"], options["shell"])
    place_here(fields, place, environ)
    return build_spec(fields)


def place_here(fields: dict[str, Any], place: ControllerPlace, environ: Mapping[str, str]) -> None:
    """Give a job this folder and the active environment, where the controller is on this machine
    and the job's own fields say nothing else."""
    if isinstance(fields.get("cwd"), str):
        fields["cwd"] = os.path.abspath(os.path.expanduser(fields["cwd"]))
    elif fields.get("cwd") is not None:
        pass  # a number in a file; `build_spec` refuses it
    elif fields.get("code") is not None:
        pass  # it starts where its code is
    elif place.is_local and not _runs_image_command(fields) and not fields.get("fresh_workdir"):
        fields["cwd"] = _here()
    given = fields.get("env") or {}
    if place.is_local and fields.get("image") is None and isinstance(given, Mapping):
        active = {name: value for name, value in environ.items() if name in _SHELL_VARIABLES}
        fields["env"] = {name: value for name, value in active.items() if value} | dict(given)


def _runs_image_command(fields: Mapping[str, Any]) -> bool:
    """Say whether the command is the image's own, which belongs in the image's own folder."""
    return fields.get("image") is not None and not (fields.get("argv") or fields.get("shell"))


def _here() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        raise ValidationError(
            "the working folder is gone; change to another or give --cwd", field="cwd"
        ) from error


def _read_command(fields: dict[str, Any], command: Sequence[str], shell: str | None) -> None:
    if command and shell is not None:
        raise ValidationError("give either a command or --shell, not both", field="shell")
    if command:
        fields.pop("shell", None)
        fields["argv"] = list(command)
    elif shell is not None:
        fields.pop("argv", None)
        fields["shell"] = shell
    elif not fields.get("argv") and fields.get("shell") is None and fields.get("image") is None:
        raise ValidationError(
            "no command given. Write it after `--`, as in `holdfast run -- python train.py`, "
            'or use --shell "LINE" or --file job.toml',
            field="argv",
        )


def _merge(fields: dict[str, Any], name: str, more: Mapping[str, str]) -> None:
    old = fields.get(name) or {}
    if not isinstance(old, Mapping):
        raise ValidationError(f"{name} in the file is not a table of names and values", field=name)
    if more or old:
        fields[name] = {**old, **more}


def read_file(path: str) -> dict[str, Any]:
    """Read a job's fields from a TOML or YAML file. Raises ValidationError with the wrong line."""
    file = Path(path)
    try:
        data = file.read_bytes()
        if file.suffix.lower() in (".yaml", ".yml"):
            import yaml

            try:
                fields = yaml.safe_load(data)
            except (yaml.YAMLError, UnicodeDecodeError) as error:
                raise ValidationError(
                    f"{path} is not YAML: {' '.join(str(error).split())}", field="file"
                ) from error
        else:
            import tomllib  # late, because most jobs are given by words

            try:
                fields = tomllib.loads(data.decode())
            except (ValueError, RecursionError) as error:  # a number of 5000 digits, too
                raise ValidationError(f"{path} is not TOML: {error}", field="file") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ValidationError(f"{path} cannot be read: {why}", field="file") from error
    except RecursionError as error:
        raise ValidationError(f"{path} is nested too deeply", field="file") from error
    if not isinstance(fields, dict):
        raise ValidationError(f"{path} holds no table of fields", field="file")
    return {str(name): value for name, value in fields.items()}


def name_parents(client: Client, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with ids in place of the words that name jobs after `--after`."""
    return {**options, "after": [find_parent(client, word) for word in options["after"]]}


def with_input(client: Client, spec: JobSpec, given: str | None) -> JobSpec:
    """Upload the input that `--stdin` names, and return the spec with its checksum. Raises
    ValidationError."""
    if given is None:
        return spec
    try:
        if given == "-":
            data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
        else:
            with open(given, "rb") as file:
                data = file.read(MAX_STDIN_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ValidationError(f"--stdin {given}: cannot be read: {why}", field="stdin") from None
    if len(data) > MAX_STDIN_BYTES:
        raise ValidationError(
            f"--stdin {given}: it has more than {MAX_STDIN_BYTES >> 20} MiB; give a job its larger "
            "input as a path or an address",
            field="stdin",
        )
    return msgspec.structs.replace(spec, stdin=client.put_value(data))


def check_piped_input(given: str | None) -> None:
    """Refuse input that was piped into this command and that no job would read. Raises
    ValidationError."""
    if given is not None or not has_piped_input():
        return
    raise ValidationError(
        "what is piped into this command would be read by no job; --stdin - gives it to the job, "
        "and < /dev/null leaves it alone",
        field="stdin",
    )


def has_piped_input(fd: int = 0) -> bool:
    """Return whether a pipe or a file was given as the standard input, and has something to read
    now."""
    try:
        found = os.fstat(fd)
        if stat.S_ISREG(found.st_mode):
            return found.st_size > os.lseek(fd, 0, os.SEEK_CUR)
        if not stat.S_ISFIFO(found.st_mode):
            return False
        waiting: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4))[0]
    except (OSError, ValueError):
        return False
    return waiting > 0


def submit_spec(client: Any, options: Mapping[str, Any], rank: int | None = None) -> Any:
    """Submit the job of the options and return its record; `rank` must be one of its ranks."""
    spec = read_job(client, name_parents(client, options))
    if rank is not None and rank >= spec.tasks:
        raise ValidationError(
            f"--rank {rank}: of {spec.tasks} tasks the last is rank {spec.tasks - 1}", field="rank"
        )
    job = client.submit(spec)
    remember_job(client, job.id)
    return job


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--array", metavar="LIST[%N]", help="Once for each index: 0-999, 1,3,5-9; %N at once."
)
@click.option("--sweep", metavar="FILE", help="Once for each point of a grid in TOML.")
@click.option("--at-once", type=POSITIVE, help="How many of them run at once.")
@click.option(
    "--detach", "detached", is_flag=True, help="Inside of a job: go on where that job is cancelled."
)
@takes_spec
@talks
def submit(
    io: CommandIO, array: str | None, sweep: str | None, at_once: int | None, **options: Any
) -> None:
    """Submit a job and print its id; with --array or --sweep many jobs, and the id of them all.

    CMD runs without a shell. Its output is kept: `holdfast logs ID`. A job may run as long as it needs:
    it has a time limit only where --time-limit, its queue or its project names one.

    \b
    Examples:
      holdfast submit --gpus 1 --expected 2h -- python train.py --lr 3e-4
      holdfast submit --tasks 4 --gpus 8 --placement spread -- python train_ddp.py
      holdfast submit --shell "python prepare.py | gzip > out.gz"
      holdfast submit --file job.toml --priority 80
      holdfast submit --max-retries 3 --retry-delay 5m -- python fetch.py
      holdfast submit --image docker.io/library/python:3.12 -- python -V
      holdfast submit --secret HF_TOKEN --env SEED=7 -- ./run.sh
      holdfast submit --after prepare --after fetch:any -- python train.py
      holdfast submit --array 0-999%50 -- ./one.sh   reads $HOLDFAST_ARRAY_INDEX
      holdfast submit --sweep grid.toml -- python train.py --lr {lr} --seed {seed}
    """
    if array is not None and sweep is not None:
        raise click.UsageError("give either --array or --sweep, not both")
    if at_once is not None and array is None and sweep is None:
        raise click.UsageError("--at-once goes with --array or --sweep")
    with io.client() as client:
        if array is not None or sweep is not None:
            spec = read_job(client, name_parents(client, options))
            grid = None if sweep is None else read_file(sweep)
            made = submit_many(client, spec, array, grid, at_once)
            remember_job(client, made.id)
            io.show(made, made.id)
            if not io.as_json and os.isatty(2):
                note(f"submitted {made.size} jobs. Follow them: holdfast show {made.id}")
            return
        job = submit_spec(client, options)
    io.show(job, job.id)
    if io.as_json:
        return
    note(say_limits(job.limits))
    if os.isatty(2):
        note(f"submitted {job.name!r}. Follow it: holdfast logs -f {job.id}")


def say_limits(limits: JobLimits) -> str:
    """Say which limits will stop a job, and how it may start sooner."""
    text = limits.sentence
    if not limits.backfills:
        text += "; --expected TIME, how long it should take, lets it start sooner"
    return text
