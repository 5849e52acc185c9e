"""Run `holdfast up`: a loop that starts the parts, restarts them, and ends them in order.

Everything starts at once: the database in a thread, while the controller and the agent import and
the agent begins. Its first call waits in the queue of the listening socket, with a join token that
the controller puts on record before it answers. The socket outlives every controller, so that a
client that calls while the controller is started again waits for a moment and is not refused.

The stop has an order: agent (its tasks get TERM and their grace, and report), controller, the hosts
of local pools, database. Each is stopped once the one before it is gone.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.cli.up.database import Database
from holdfast.cli.up.folder import DataFolder
from holdfast.cli.up.lasting import say_where_jobs_import
from holdfast.cli.up.parts import PartProcess, Restarts, describe_exit
from holdfast.cli.up.readiness import Readiness
from holdfast.errors import HoldfastError, Unavailable
from holdfast.providers.config import FOLDER_VARIABLE

_SLOW_SECONDS = 3.0
# How long the host may take to join before another join token is made: with a key, which may be of
# another database, and with a token that is good.
_KEY_SECONDS = 2.0
_TOKEN_SECONDS = 30.0
_CONTROLLER_STOP_SECONDS = 10.0
_DATABASE_STOP_SECONDS = 10.0
_ROTATE_SECONDS = 10.0
_AHEAD_VARIABLE = "HOLDFAST_EXECUTORS_AHEAD"
# The exit code that another start would not change: `holdfast.agent.config.EXIT_BAD_CONFIG`, and
# `holdfast.controller.server.EXIT_OTHER_BLOBS`, which ends no `up` whose host may have work.
_HOPELESS = 78
_FOLDER_GONE = 75  # `holdfast.agent.guardian.loop.EXIT_FOLDER_GONE`


@dataclass
class UpOptions:
    """The flags of `holdfast up`.

    dsn: the database; None for the embedded one. host: the address to listen on. blobs: the place
    of checkpoints; None for a folder in the data folder. agent: fields of the agent's config. pool:
    the local pool that is made in place of an agent; None without one.
    """

    dsn: str | None
    host: str
    blobs: str | None = None
    agent: dict[str, Any] = field(default_factory=dict)
    pool: dict[str, Any] | None = None


class PartsSupervisor:
    """Runs `holdfast up` once. `say` is called with sentences for the person at the terminal."""

    def __init__(
        self,
        folder: DataFolder,
        options: UpOptions,
        listener: socket.socket,
        say: Callable[[str], None],
    ) -> None:
        self._folder = folder
        self._options = options
        self._listener = listener
        self._say = say
        self.url = f"http://{options.host}:{listener.getsockname()[1]}"
        self._dsn = options.dsn
        self._database = Database(folder, self._tell)
        self._parts: dict[str, PartProcess] = {}
        self._restarts = {name: Restarts() for name in ("database", "controller", "agent")}
        self._due: dict[str, float] = {}
        self._news: list[tuple[str, Any]] = []
        self._news_lock = threading.Lock()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._signals = 0
        self._ready = False
        self._told_slow = False
        self._failure: str | None = None
        self._started_at = time.monotonic()
        self._rotate_at = self._started_at + _ROTATE_SECONDS
        self._readiness = Readiness(
            folder,
            self.url,
            tell=self._tell,
            say=say,
            stopping=lambda: bool(self._signals) or self._failure is not None,
            pool=options.pool,
        )

    # ---- the loop
    def run(self) -> int:
        """Serve until told to stop, and return the exit status."""
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            numbers.append(signal.SIGHUP)
        old_handlers = {number: signal.signal(number, self._take_signal) for number in numbers}
        old_wake = signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        try:
            self._start_parts()
            while not self._signals and self._failure is None:
                self._turn(self._next_timeout())
        except BaseException as error:
            self._failure = self._failure or f"`up` itself failed: {error!r}"
            raise
        finally:
            try:
                self._stop()
            finally:
                signal.set_wakeup_fd(old_wake)
                for number, handler in old_handlers.items():
                    signal.signal(number, handler)
        if self._failure is not None:
            self._say(self._failure)
            return 1
        return 0

    def _take_signal(self, number: int, frame: Any) -> None:
        self._signals += 1

    def _tell(self, what: str, value: Any = None) -> None:
        """Pass news from a thread on to the loop."""
        with self._news_lock:
            self._news.append((what, value))
        try:
            self._wake_out.send(b"n")
        except OSError:
            pass  # the pipe is full of the same message, or closed at the end

    def _next_timeout(self) -> float:
        now = time.monotonic()
        marks = [*self._due.values(), self._rotate_at]
        if not self._ready and not self._told_slow:
            marks.append(self._started_at + _SLOW_SECONDS)
        return max(0.0, min(marks) - now)

    def _turn(self, timeout_seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake_in, select.POLLIN)
        names = {part.pidfd: name for name, part in self._parts.items()}
        for pidfd in names:
            poll.register(pidfd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(timeout_seconds * 1000 + 1)]
        if self._wake_in.fileno() in ready:
            self._drain_wakes()
        with self._news_lock:
            news, self._news = self._news, []
        for what, value in news:
            self._hear(what, value)
        for pidfd in ready:
            if pidfd in names:
                self._bury(names[pidfd])
        self._tick(time.monotonic())

    def _drain_wakes(self) -> None:
        try:
            while self._wake_in.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _tick(self, now: float) -> None:
        for name in [name for name, due in self._due.items() if due <= now]:
            del self._due[name]
            if not self._signals:
                self._start(name)
        if now >= self._rotate_at:
            self._rotate_at = now + _ROTATE_SECONDS
            self._folder.rotate_logs()
        if not self._ready and not self._told_slow and now - self._started_at >= _SLOW_SECONDS:
            self._told_slow = True
            serving = "the controller" if self._options.pool else "the controller and its agent"
            waiting = "the database" if self._dsn is None else serving
            self._say(f"starting; waiting for {waiting} (logs: {self._folder.log_folder})")

    # ---- starting
    def _start_parts(self) -> None:
        if self._options.dsn is None:
            self._start("database")  # first, because the others wait for it
        self._start("controller")
        if self._options.pool is None:
            self._invite()
            self._start("agent")
        else:
            self._watch_join()

    def _invite(self) -> None:
        """Make the host's join token, if the host has no key; watch for its joining."""
        if self._folder.has_joined:
            return self._watch_join(_KEY_SECONDS)
        try:
            self._folder.write_join()
        except OSError as error:
            self._say(f"no join token: {self._folder.join_file}: {error.strerror}")
        self._watch_join(_TOKEN_SECONDS)

    def _start(self, name: str) -> None:
        if name == "database":
            self._restarts[name].start(time.monotonic())
            self._database.start()
            return
        self._spawn(name)
        self._feed(name)

    def _spawn(self, name: str) -> None:
        self._restarts[name].start(time.monotonic())
        fds = (self._listener.fileno(),) if name == "controller" else ()
        log = self._folder.log_file(name)
        try:
            # Machines of local pools belong to this run, unless the user names another folder.
            more = {FOLDER_VARIABLE: str(self._folder.machines_folder)}
            if self._options.agent.get("apps") and _AHEAD_VARIABLE not in os.environ:
                more[_AHEAD_VARIABLE] = "1"  # the first call finds a warm executor
            self._parts[name] = PartProcess(name, log, self._folder.path, fds, more)
        except OSError as error:
            self._say(f"the {name} cannot be started ({error}); trying again")
            self._due[name] = time.monotonic() + self._restarts[name].die(time.monotonic())
            return
        self._folder.record_parts({n: part.pid for n, part in self._parts.items()})

    def _feed(self, name: str) -> None:
        """Send a part its options, unless it has to wait for the database."""
        part = self._parts.get(name)
        options = self._options_of(name)
        if part is not None and options is not None:
            part.send_options(options)

    def _options_of(self, name: str) -> dict[str, Any] | None:
        if name == "agent":
            return {
                **self._options.agent,
                "url": self.url,
                "state_dir": str(self._folder.host_folder),
                "join_token_file": str(self._folder.join_file),
            }
        if self._dsn is None:
            return None
        joins = self._options.pool is None and not self._folder.has_joined
        return {
            "dsn": self._dsn,
            "join_token_file": str(self._folder.join_file) if joins else None,
            "listen_fd": self._listener.fileno(),
            "log_format": "json",
            "host": self._options.host,
            "port": self._listener.getsockname()[1],
            "token_file": str(self._folder.token_file),
            "blobs": self._options.blobs or str(self._folder.path / "blobs"),
        }

    # ---- what happens
    def _hear(self, what: str, value: Any) -> None:
        if what == "database_ready":
            moved = self._dsn is not None and self._dsn != value
            self._dsn = value
            if moved and "controller" in self._parts:
                # The controller is started again with the new address.
                self._parts["controller"].signal(signal.SIGTERM)
            self._feed("controller")
        elif what in ("database_failed", "database_died"):
            self._lose_database(value)
        elif what == "ready" and not self._signals:
            try:
                self._folder.publish(self.url)
            except OSError as error:
                folder = self._folder.path
                self._failure = f"the data folder {folder} cannot be written: {error.strerror}"
                return
            first, self._ready = not self._ready, True
            if first:
                self._say_ready()
            else:
                self._say("this host has joined again")

    def _lose_database(self, error: Exception | None) -> None:
        if self._signals:
            return
        restarts = self._restarts["database"]
        delay = restarts.die(time.monotonic(), "" if error is None else str(error))
        why = "the database died"
        if error is not None:
            why = f"the database does not start: {str(error).rstrip('.')}"
        hopeless = isinstance(error, HoldfastError) and not isinstance(error, Unavailable)
        if not self._ready and (hopeless or restarts.repeats or restarts.keeps_dying):
            self._failure = why
            return
        self._start_later("database", delay, why)

    def _start_later(self, name: str, delay: float, why: str) -> None:
        self._say(f"{why}; starting it again{'' if delay < 1 else f' in {delay:.0f} s'}")
        self._due[name] = time.monotonic() + delay

    def _bury(self, name: str) -> None:
        code = self._parts.pop(name).reap()
        self._folder.record_parts({n: part.pid for n, part in self._parts.items()})
        if self._signals:
            return
        restarts = self._restarts[name]
        delay = restarts.die(time.monotonic())
        why = f"the {name} {describe_exit(code)}"
        hopeless = code == _HOPELESS and (name == "agent" or not self._ready)
        if hopeless or (restarts.keeps_dying and not self._ready):
            log = self._folder.log_file(name)
            self._failure = f"{why}. The end of {log}:\n{self._folder.tail(name)}"
        elif restarts.keeps_dying:
            why = f"the {name} keeps dying: it {describe_exit(code)}. The end of its log:\n"
            self._say(f"{why}{self._folder.tail(name)}\nIt is started again in {delay:.0f} s")
            self._due[name] = time.monotonic() + delay
        else:
            if name == "agent":
                why += ", and as the host's guardian it took all tasks and shells with it"
            if code == _FOLDER_GONE:
                why = (
                    f"the host's folder {self._folder.host_folder} was removed, so its agent ended"
                )
                self._watch_join(0.0)  # the host's key was there
            self._start_later(name, delay, why)

    def _watch_join(self, patience_seconds: float = 0.0) -> None:
        watch = self._readiness.watch
        threading.Thread(
            target=watch, args=(patience_seconds,), daemon=True, name="readiness"
        ).start()

    def _say_ready(self) -> None:
        took = time.monotonic() - self._started_at
        self._say(f"ready at {self.url} ({took:.1f} s); Ctrl-C stops it all")
        self._say(self._folder.tell_how_to_reach(self.url))
        if (sentence := say_where_jobs_import(self._folder.path)) is not None:
            self._say(sentence)

    # ---- stopping
    def _stop(self) -> None:
        """Stop all parts. Another Ctrl-C shortens the waiting, never the order."""
        self._signals = max(self._signals, 1)
        self._due.clear()
        self._folder.unpublish()
        if self._ready and self._failure is None:
            pool = self._options.pool is not None
            first = "controller, hosts of local pools" if pool else "agent, controller"
            self._say(f"stopping: {first}, database")
        try:
            self._stop_agent()
            self._stop_part("controller", _CONTROLLER_STOP_SECONDS)
            self._end_machines()
        finally:
            for part in self._parts.values():  # some are left only after a failure above
                part.signal(signal.SIGKILL)
            self._stop_database()
        self._folder.forget_parts()

    def _stop_agent(self) -> None:
        """Stop the agent and its tasks, in their grace; a second Ctrl-C ends the tasks at once."""
        part = self._parts.get("agent")
        if part is None:
            return
        part.signal(signal.SIGTERM if part.told else signal.SIGKILL)
        heard = self._signals
        told_at = time.monotonic()
        told = False
        while "agent" in self._parts:
            self._turn(0.5)
            if not told and time.monotonic() - told_at > 1.0:
                told = True
                self._say(
                    "waiting for running tasks to end in their grace; Ctrl-C again ends them at "
                    "once"
                )
            if self._signals > heard:
                heard = self._signals
                part.signal(signal.SIGTERM if heard <= 2 else signal.SIGKILL)

    def _stop_part(self, name: str, seconds: float) -> None:
        part = self._parts.get(name)
        if part is None:
            return
        part.signal(signal.SIGTERM if part.told else signal.SIGKILL)
        part.signal(signal.SIGCONT)
        deadline = time.monotonic() + seconds
        heard = self._signals
        while name in self._parts:
            self._turn(min(0.5, max(0.05, deadline - time.monotonic())))
            if time.monotonic() > deadline or self._signals > max(heard, 1):
                part.signal(signal.SIGKILL)

    def _end_machines(self) -> None:
        """End the hosts of local pools, which may outlive a controller, but not this `up`."""
        machines = self._folder.machines_folder
        if not machines.is_dir():
            return
        from holdfast.providers.local import end_machines  # needed by an `up` with a pool only

        try:
            ended = end_machines(machines)
        except (OSError, HoldfastError) as error:
            self._say(f"hosts of local pools may still run, see {machines}: {error}")
        else:
            if ended:
                self._say(f"ended {ended} host{'s' * (ended != 1)} of local pools")

    def _stop_database(self) -> None:
        deadline = time.monotonic() + 60
        while self._database.starting and time.monotonic() < deadline:
            self._turn(0.1)
        try:
            self._database.stop(_DATABASE_STOP_SECONDS if self._signals < 3 else 1.0)
        except Exception as error:
            self._say(f"the database could not be stopped: {error}")
