"""Run `holdfast up`, which starts everything on this machine by one command."""

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.extras import need_linux, need_server
from holdfast.cli.options import add_options
from holdfast.client.locate import DATA_FOLDER
from holdfast.client.specs import parse_bytes
from holdfast.core.spec import Name
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.agent.probes.worker_client import ProbeWorker

DEFAULT_PORT = 7878
MAX_GPUS = 1024


AGENT_OPTIONS = (
    click.option(
        "--slots", type=click.IntRange(0, 65_536), help="CPU tasks at once. [default: CPUs]"
    ),
    click.option("--gpus", metavar="N|auto", default="auto", help="GPUs to offer."),
    click.option("--queues", metavar="Q,Q", help="Queues to serve. [default: all]"),
    click.option("--name", help="The host's name. [default: this machine's]"),
    click.option(
        "--app",
        "apps",
        multiple=True,
        metavar="MODULE",
        help="Run calls of this module's functions here; repeatable.",
    ),
    click.option("--app-path", metavar="DIR", help="The folder of apps. [default: this one]"),
    click.option(
        "--pass-env",
        multiple=True,
        metavar="NAME",
        help="Give tasks this variable of the agent's own, or all that fit, as WANDB_*; repeatable.",
    ),
    click.option(
        "--mount",
        "mounts",
        multiple=True,
        metavar="NAME=DIR|BUCKET[:rw]",
        help="Offer jobs this folder or bucket, read-only unless :rw; repeatable.",
    ),
    click.option(
        "--cache-limit", metavar="SIZE", help="Most bytes of jobs' caches. [default: 100G]"
    ),
    click.option("--app-python", metavar="FILE", help="Their interpreter. [default: this one]"),
    click.option("--no-sessions", is_flag=True, help="Let no user into the tasks of this host."),
)


@click.command()
@add_options(*AGENT_OPTIONS)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    help=f"The port; 0: any. [default: {DEFAULT_PORT}, or a free one]",
)
@click.option(
    "--dsn", envvar="HOLDFAST_DSN", metavar="DSN", help="Your PostgreSQL. [default: embedded]"
)
@click.option("--data", default=DATA_FOLDER, metavar="DIR", help="The folder of all data.")
@click.option(
    "--pool",
    is_flag=False,
    flag_value="local",
    metavar="[NAME]",
    help="No host here, but a pool of local ones that grows with the queue. [default name: local]",
)
@click.option(
    "--blobs",
    envvar="HOLDFAST_BLOBS",
    metavar="DIR|s3://BUCKET/PREFIX",
    help="The place of checkpoints. [default: a folder in --data]",
)
def up(
    port: int | None, dsn: str | None, data: str, blobs: str | None, pool: str | None, **flags: Any
) -> int:
    """Start everything here: database, controller, one agent. Ctrl-C stops all of it.

    All data is in one folder, ./holdfast-data: the database, the token (file `token`), the address
    (file `url`, present while `up` is ready), checkpoints (`blobs/`), the logs of each part (`log/`).
    Commands in the folder above it, or below, find it by themselves. If --data has another name, set
    HOLDFAST_URL and HOLDFAST_TOKEN as `up` prints them. It listens on loopback only.

    With --pool there is no agent before there is work: a pool of that name, made if it is missing,
    starts up to --slots hosts of one slot each as jobs wait, and ends them when they are idle. On a
    machine with GPUs, and with --gpus N, it starts one host that has them all.

    \b
    Examples:
      holdfast up
      holdfast up --pool --slots 8
      holdfast up --slots 4 --gpus 0 --port 0
      holdfast up --app mytasks
      holdfast up --dsn postgresql://me@db.example/holdfast
    """
    need_linux("up")
    from holdfast.cli.up.folder import DataFolder
    from holdfast.cli.up.lasting import leave_cache
    from holdfast.cli.up.listener import open_listener
    from holdfast.cli.up.supervisor import PartsSupervisor, UpOptions
    from holdfast.process.groups import step_aside

    need_server()
    agent = agent_options(**flags)
    warn_of_absent_apps(agent, say)
    spec = None if pool is None else pool_options(pool, agent, count_gpus)
    if blobs is not None and "://" in blobs:
        from holdfast.blobs.locate import open_blobs

        open_blobs(blobs, os.environ)  # refuses a bad address before anything is started
    folder = DataFolder(Path(data).expanduser())
    folder.prepare()
    folder.lock()
    leave_cache(folder.path, say)
    step_aside()
    try:
        folder.unpublish()  # the address of an `up` that was killed
        folder.end_leftovers(say)
        folder.rotate_logs(at_start=True)
        listener = open_listener("127.0.0.1", port, DEFAULT_PORT, say)
        with listener:
            if blobs is not None and "://" not in blobs:
                # Parts run in the data folder, so that they need an absolute path.
                blobs = os.path.abspath(os.path.expanduser(blobs))
            options = UpOptions(dsn=dsn, host="127.0.0.1", agent=agent, blobs=blobs, pool=spec)
            return PartsSupervisor(folder, options, listener, say).run()
    finally:
        folder.unlock()


def agent_options(
    *,
    slots: int | None,
    gpus: str,
    queues: str | None,
    name: str | None,
    apps: Sequence[str] = (),
    app_path: str | None = None,
    app_python: str | None = None,
    pass_env: Sequence[str] = (),
    mounts: Sequence[str] = (),
    cache_limit: str | None = None,
    no_sessions: bool = False,
) -> dict[str, Any]:
    """Read flags as fields of an agent's config. Raises ValidationError."""
    cpus = len(os.sched_getaffinity(0)) if slots is None else slots
    options: dict[str, Any] = {"cpu_slots": cpus}
    if gpus != "auto":
        options["gpus"] = read_gpus(gpus)
    if queues:
        options["queues"] = [
            _read_name("queues", queue.strip()) for queue in queues.split(",") if queue.strip()
        ]
    if name is not None:
        options["name"] = _read_name("name", name)
    named = [*pass_env, *os.environ.get("HOLDFAST_PASS_ENV", "").replace(",", " ").split()]
    if named:
        options["pass_env"] = named
    if mounts:
        options["mounts"] = read_mounts(mounts)
    if cache_limit is not None:
        try:
            options["cache_bytes"] = parse_bytes(cache_limit)
        except ValueError as error:
            raise ValidationError(f"--cache-limit: {error}", field="cache_bytes") from None
    if no_sessions:
        options["sessions"] = False
    if apps:
        options["apps"] = [_read_name("app", app) for app in apps]
        options["app_path"] = os.path.abspath(os.path.expanduser(app_path or "."))
        if app_python:
            options["app_python"] = os.path.abspath(os.path.expanduser(app_python))
    return options


def read_mounts(words: Sequence[str]) -> dict[str, Any]:
    """Read NAME=/DIR, NAME=s3://BUCKET/PREFIX (by mount-s3), NAME=s3fs:BUCKET/PREFIX and
    NAME=rclone:REMOTE:BUCKET/PREFIX, each with :rw behind it if jobs may write. Raises
    ValidationError."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, place = word.partition("=")
        if not equals or not place:
            raise ValidationError(
                f"--mount {word!r} is not NAME=DIR, NAME=s3://BUCKET, NAME=s3fs:BUCKET or "
                "NAME=rclone:REMOTE:BUCKET, with :rw behind it if jobs may write",
                field="mounts",
            )
        mount: dict[str, Any] = {}
        if place.endswith((":rw", ":ro")):
            mount = {"write": True} if place.endswith(":rw") else {}
            place = place[:-3]
        tools = {"s3://": "mount-s3", "s3fs:": "s3fs", "rclone:": "rclone"}
        begins = next((begin for begin in tools if place.startswith(begin)), None)
        if begins is None:
            mount["path"] = os.path.abspath(os.path.expanduser(place))
        else:
            mount |= {"tool": tools[begins], "bucket": place.removeprefix(begins)}
        found[name] = mount
    return found


def warn_of_absent_apps(agent: Mapping[str, Any], tell: Callable[[str], None]) -> None:
    """Warn of apps that are no modules of the folder that calls import from, nor of this Python.
    They are no error, because they may be written later, or be modules of another interpreter."""
    if agent.get("app_python"):
        return
    for app in agent.get("apps", ()):
        top, folder = app.partition(".")[0], Path(agent["app_path"])
        there = (folder / top).is_dir() or any(folder.glob(f"{top}.*"))  # .py, .so
        if not there and not _is_installed(top):
            tell(
                f"there is no module {app} in {agent['app_path']} (--app-path), nor in this Python; "
                "its calls fail until there is one"
            )


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def count_gpus(worker: "ProbeWorker | None" = None) -> int:
    """Ask the drivers, through the worker, how many GPUs this machine has."""
    import asyncio

    from holdfast.agent.probes.real import RealProbe

    async def count() -> int:
        probe = RealProbe(worker)
        try:
            return len(await probe.find_gpus())
        finally:
            await probe.close()

    return asyncio.run(count())


def pool_options(name: str, agent: dict[str, Any], count: Callable[[], int]) -> dict[str, Any]:
    """Return the pool of `up --pool`: hosts of one slot, or one host with all GPUs, because
    several hosts on one machine would use the same GPUs. count: returns the number of GPUs if no
    flag gives it. Raises ValidationError."""
    if "name" in agent:
        raise click.UsageError("--name is of the host that `up` runs without --pool")
    gpus, slots = agent["gpus"] if "gpus" in agent else count(), agent["cpu_slots"]
    return {
        "name": _read_name("pool", name),
        "provider": "local",
        "max": 1 if gpus else max(1, slots),
        "jobs_per_host": 1,
        "idle_timeout_seconds": 60,
        "poll_seconds": 2,
        "queues": agent.get("queues", []),
        "config": {} if "gpus" in agent or not gpus else {"gpus": "auto"},
        "offers": [{"name": "here", "gpus": gpus, "cpu_slots": slots if gpus else min(1, slots)}],
    }


def _read_name(flag: str, text: str) -> str:
    try:
        return msgspec.convert(text, Name)
    except msgspec.ValidationError:
        raise ValidationError(
            f"--{flag}: {text[:40]!r} is not a name: letters, digits, `.`, `_`, `/` and `-`, a "
            "letter or digit first, at most 128",
            field=flag,
        ) from None


def read_gpus(text: str) -> int:
    """Read the number of GPUs that a machine offers. Raises ValidationError."""
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and int(text) <= MAX_GPUS):
        raise ValidationError(
            f"--gpus is auto or a number up to {MAX_GPUS}, not {text[:40]!r}", field="gpus"
        )
    return int(text)


def say(sentence: str) -> None:
    """Print a sentence, if the terminal is still there."""
    try:
        print(f"holdfast up: {sentence}", flush=True)
    except OSError:
        pass
