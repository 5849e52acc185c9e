"""`top`: hosts, GPUs and jobs as they are now, with keys to look into a job."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.live.screen import Screen, ScreenEnded
from holdfast.cli.output import columns, print_text
from holdfast.cli.watch.draw import (
    Ask,
    Focus,
    View,
    draw_hosts,
    draw_jobs,
    draw_top,
    press,
    settle,
    sort_jobs,
)
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Client

LOOK_SECONDS = 2.0
MAX_JOBS = 500
MAX_HOSTS_READ = 16
"""The most hosts whose devices are read at each look, one call for each."""
_STATES = ("running", "draining", "reserved", "queued", "waiting")


@click.command()
@click.option("--queue", help="Only the jobs of this queue.")
@click.option("--project", help="Only the jobs of this project.")
@talks
def top(io: CommandIO, queue: str | None, project: str | None) -> None:
    """Show hosts, GPUs and unfinished jobs, drawn anew every two seconds.

    Keys: j and k (or arrows) choose a job; f follows its output, until Ctrl-C; w says why it is in its
    state; c cancels it, after y; s opens a shell in it; q leaves. Into a pipe, and with --json, one look
    is printed.

    \b
    Examples:
      holdfast top
      holdfast top --queue gpu
      holdfast top | cat
    """
    chosen = {"queue": queue, "project": project}
    if io.as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        with io.client() as client:
            view = look(client, chosen)
        found = {"hosts": view.hosts, "jobs": sort_jobs(view.jobs)}
        width = min(columns(), 1000)
        lines = [*draw_hosts(view, width), "", *draw_jobs(view, "", width, len(view.jobs) + 1)]
        io.show(found, "\n".join(line.rstrip() for line in lines))
        return
    try:
        with Screen() as screen, LookThread(io, screen, chosen) as looks:
            _run(io, screen, looks)
    except ScreenEnded as end:
        sys.exit(128 + end.number)


def look(client: Client, only: dict[str, Any]) -> View:
    """Look at the cluster once."""
    hosts = tuple(client.hosts())
    jobs = []
    for job in client.jobs(states=_STATES, page_size=MAX_JOBS, **only):
        jobs.append(job)
        if len(jobs) == MAX_JOBS:
            break
    gpus = {}
    for host in [host for host in hosts if host.gpus and not host.dead][:MAX_HOSTS_READ]:
        with contextlib.suppress(HoldfastError):
            latest = client.host_telemetry(host.id, seconds=60).latest
            if latest is not None:
                gpus[host.id] = latest.gpus
    return View(
        at=datetime.now(UTC),
        place=client.place.url,
        hosts=hosts,
        jobs=tuple(sort_jobs(jobs)),
        gpus=gpus,
    )


class LookThread:
    """A thread that looks every two seconds, so that keys act while an answer is awaited."""

    def __init__(self, io: CommandIO, screen: Screen, only: dict[str, Any]) -> None:
        self._io, self._screen, self._only = io, screen, only
        self.view = View(at=datetime.now(UTC), place="", error="looking…")
        self._over = threading.Event()
        self._soon = threading.Event()

    def __enter__(self) -> LookThread:
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._soon.set()

    def hurry(self) -> None:
        """Have the thread look again at once."""
        self._soon.set()

    def _look(self) -> None:
        while not self._over.is_set():
            try:
                with self._io.client() as client:
                    while not self._over.is_set():
                        self.view = look(client, self._only)
                        self._screen.wake()
                        self._pause()
            except (HoldfastError, OSError) as error:
                self.view = msgspec.structs.replace(self.view, error=str(error))
                self._screen.wake()
                self._pause()

    def _pause(self) -> None:
        self._soon.wait(LOOK_SECONDS)
        self._soon.clear()


def _run(io: CommandIO, screen: Screen, looks: LookThread) -> None:
    place = Focus()
    while True:
        size, view = screen.size, looks.view
        place = settle(place, view.jobs)
        screen.draw(draw_top(view, place, size.columns, size.lines))
        key = screen.read_key(LOOK_SECONDS)
        place, ask, job_id = press(key, place, view.jobs, max(1, size.lines // 2))
        if ask is Ask.QUIT:
            return
        if ask in (Ask.FOLLOW, Ask.SHELL):
            words = ("logs", "-f", job_id) if ask is Ask.FOLLOW else ("shell", job_id)
            said = _lend(io, screen, words)
            place = msgspec.structs.replace(place, said=said)
            looks.hurry()
        elif ask is Ask.WHY:
            text = _ask(io, partial(_say_why, job_id=job_id, width=size.columns))
            place = msgspec.structs.replace(place, text=tuple(text.splitlines()))
        elif ask is Ask.CANCEL:
            said = _ask(io, partial(_cancel, job_id=job_id))
            place = msgspec.structs.replace(place, said=said)
            looks.hurry()


def _ask(io: CommandIO, ask: Callable[[Client], str]) -> str:
    try:
        with io.client() as client:
            return ask(client)
    except (HoldfastError, OSError) as error:
        return f"! {error}"


def _say_why(client: Client, job_id: str, width: int) -> str:
    from holdfast.cli.jobs.show import why_text

    wrapped = (
        textwrap.wrap(line, width) or [""] for line in why_text(client.why(job_id)).splitlines()
    )
    return "\n".join([job_id, "", *(part for parts in wrapped for part in parts)])


def _cancel(client: Client, job_id: str) -> str:
    job = client.cancel(job_id, "`holdfast top`")
    return f"{job_id} is {job.state.value}"


def _lend(io: CommandIO, screen: Screen, words: tuple[str, ...]) -> str:
    """Run another command of `holdfast` in the terminal, and return a message for the person
    afterwards."""
    environment = dict(os.environ)
    more = [] if io.url is None else ["--url", io.url]
    more += [] if io.token_file is None else ["--token-file", io.token_file]
    command = [sys.executable, "-P", "-m", "holdfast", words[0], *more, *words[1:]]
    with screen.lent():
        done = subprocess.run(command, env=environment)
        if done.returncode not in (0, 130):
            print_text(
                f"`holdfast {' '.join(words)}` ended with code {done.returncode}. Enter goes back."
            )
            with contextlib.suppress(OSError, KeyboardInterrupt):
                sys.stdin.readline()
    return ""
