"""The guardian: the host's init.

It parents the tasks, so that an agent may crash, freeze or be upgraded under them. To its agent it
hands, in the
environment: HOLDFAST_GUARDIAN_FD (the line of `wire.guardian`), HOLDFAST_BEAT_FD and
HOLDFAST_BEAT_SOCKET (the beat socket and its path, which outlive agents so that beats queue
meanwhile), HOLDFAST_INCARNATION, HOLDFAST_GUARDIAN_PID, HOLDFAST_HOST_MARK and HOLDFAST_GROUPS (for
`guardian_home.sweep_after_guardian`).

One poll loop, no threads, no GPU library. It does what `wire.guardian` says and decides nothing
else, except:

GUARD-5  One guardian per folder (a lock); at its start nothing of an earlier one lives
         (`process.sweep`), and it is a new incarnation of the host, which tells the controller that
         the earlier one's tasks are dead.
GUARD-6  Its own end ends every task: in order on TERM or INT (stop with each task's grace, wait for
         the ends to be acknowledged), by parent-death signal and sweep when it is killed.
GUARD-7  Nothing that goes wrong with one request, one descriptor or one part of a turn ends the
         loop or keeps the other parts from being done; it is noted with its traceback.
GUARD-8  Deadlines are kept on a clock that counts suspension, and by a timer of that clock: a host
         that wakes up ends what lapsed in its sleep in its first turn. An extension that waits to
         be obeyed counts from when it is heard.

Signals: TERM or INT shuts the host down, a second one at once; HUP replaces the agent by what is on
disk now.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.agent.guardian.child import INF, AgentChild
from holdfast.agent.guardian.home import GuardianHome, Notifier, read_group_homes
from holdfast.agent.guardian.tasks import HostTasks
from holdfast.errors import Conflict
from holdfast.process.ending import Signaller, TreeEnding
from holdfast.process.groups import open_group_home
from holdfast.process.spawn import raise_descriptor_limit
from holdfast.process.sweep import sweep
from holdfast.process.syscalls import (
    BootTimer,
    become_subreaper,
    read_boottime,
    set_parent_death_signal,
)
from holdfast.process.tree import Forest
from holdfast.process.urgent import urgent
from holdfast.process.watch import MAX_EXITS, Exit, Watcher
from holdfast.wire.guardian import (
    Ack,
    AgentAlive,
    AgentHello,
    Extend,
    LaunchTask,
    Request,
    Stopping,
    StopTask,
)

EXIT_ALREADY_SERVED = 73  # a second guardian on the same folder
_ACK_SECONDS = 5.0
_HOLD_SECONDS = 60.0  # an agent holds ends back for half of that (SAVE-1)
_IDLE_SECONDS = 5.0
# A burst of launches must not keep exits waiting: a fork takes about half a millisecond. The rest
# is quick, and stops that are heard together are carried out together (TREE-5).
_LAUNCHES_PER_TURN = 4
_REQUESTS_PER_TURN = 256
_PORTIONS_PER_TURN = 16  # of exits: some ten milliseconds' worth
_BUSY_SECONDS = 1.0  # orphans are reaped at least this often (WATCH-2)
_MISHAP_SECONDS = (
    0.1  # the pause after something went wrong, so that what always does costs no processor
)
_MISHAPS_NOTED = 200
_GUARDIAN_OOM_SCORE = -900
T = TypeVar("T")


class GuardianConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How to run.

    state_dir: the guardian's own folder, made 0700. host_id: the mark its processes carry; unique
    to this host and cluster.
    agent_argv: the agent's command. frozen_seconds: silence after which it is replaced.
    agent_backoff_seconds: the first and the longest wait before an agent that keeps dying is
    started again.
    kill_limit_seconds: after which what survives SIGKILL is given up as unkillable. use_groups:
    make control groups where possible. die_with_parent: shut down when the starter dies.
    """

    state_dir: Path
    host_id: str
    agent_argv: list[str]
    frozen_seconds: float = 20.0
    agent_backoff_seconds: tuple[float, float] = (0.2, 10.0)
    kill_limit_seconds: float = 10.0
    use_groups: bool = True
    die_with_parent: bool = False


def run_guardian(
    config: GuardianConfig,
    *,
    signaller: Signaller | None = None,
    read_clock: Callable[[], float] = read_boottime,
) -> int:
    """Serve the host until told to stop. Returns the exit status: 0, or `EXIT_ALREADY_SERVED`.

    The calling process becomes the guardian: it must be single-threaded and have no children of its
    own to wait for. `read_clock`: the clock of deadlines, CLOCK_BOOTTIME save in tests.
    """
    if config.die_with_parent:
        parent = os.getppid()
        set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != parent:
            return 0
    try:
        home = GuardianHome(config.state_dir)
    except Conflict as error:
        write_note(error.message)
        return EXIT_ALREADY_SERVED
    try:
        with urgent():
            return _Guardian(config, home, signaller or Signaller(), read_clock).run()
    finally:
        home.close()


def write_note(sentence: str, **fields: object) -> None:
    """Write one JSON line to standard error."""
    words = {key: value for key, value in fields.items() if value is not None}
    line = (
        msgspec.json.encode({"at": time.time(), "from": "guardian", "message": sentence, **words})
        + b"\n"
    )
    try:
        os.write(2, line)
    except OSError:
        pass  # a full disk or a closed terminal must not end the host's tasks


class _Guardian:
    """The loop and what it holds."""

    def __init__(
        self,
        config: GuardianConfig,
        home: GuardianHome,
        signaller: Signaller,
        read_clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._read_clock = read_clock
        self._mishaps = 0
        self._said: set[str] = set()
        self._descriptor_limit = raise_descriptor_limit()
        self._signaller = signaller
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._poll = select.epoll()
        self._wake_fd = self._take_signals()
        survivors = sweep(
            config.host_id,
            group_homes=read_group_homes(config.state_dir),
            kill_limit_seconds=config.kill_limit_seconds,
        )
        if survivors:
            write_note("processes of an earlier guardian survive SIGKILL", pids=survivors)
        become_subreaper()
        self._incarnation = os.urandom(16).hex()
        self._notifier = Notifier()
        self._watcher = Watcher()
        self._forest = Forest(config.host_id)
        self._groups = open_group_home(config.host_id) if config.use_groups else None
        if not home.record_group_folder(self._groups.path if self._groups else ""):
            write_note(
                "the disk is full: if this guardian is killed, the next one must find its tasks "
                "without their groups"
            )
        self._beats, beat_path = home.open_beat_socket()
        self._handle(
            self._watcher.fileno(), lambda _: None
        )  # being woken is all: every turn collects
        self._timer = BootTimer()
        self._handle(self._timer.fileno(), lambda _: self._timer.clear())
        self._agent = self._make_agent(beat_path)
        self._tasks = HostTasks(
            forest=self._forest,
            watcher=self._watcher,
            group_home=self._groups,
            kill_limit_seconds=config.kill_limit_seconds,
            oom_score_adj=shield_from_oom(),
            descriptor_limit=self._descriptor_limit,
            read_clock=read_clock,
            signaller=signaller,
            tell=self._agent.tell,
            note=write_note,
            watch_start=lambda fd, act: self._handle(fd, lambda _: act()),
            unwatch_start=self._drop,
        )
        self._agent_endings: list[TreeEnding] = []
        self._asked: deque[Request] = deque()
        self._closing = False
        self._ack_until = self._hold_until = INF

    def _make_agent(self, beat_path: str) -> AgentChild:
        env = {name: value for name, value in os.environ.items() if name not in Notifier.VARIABLES}
        env |= {
            "HOLDFAST_BEAT_FD": str(self._beats.fileno()),
            "HOLDFAST_BEAT_SOCKET": beat_path,
            "HOLDFAST_INCARNATION": self._incarnation,
            "HOLDFAST_GUARDIAN_PID": str(os.getpid()),
            "HOLDFAST_HOST_MARK": self._config.host_id,
            "HOLDFAST_GROUPS": self._groups.path if self._groups else "",
        }
        return AgentChild(
            argv=self._config.agent_argv,
            env=env,
            pass_fds=(self._beats.fileno(),),
            host=self._config.host_id,
            descriptor_limit=self._descriptor_limit,
            frozen_seconds=self._config.frozen_seconds,
            backoff_seconds=self._config.agent_backoff_seconds,
            forest=self._forest,
            watcher=self._watcher,
            note=write_note,
            set_interest=self._set_agent_interest,
            drop_interest=self._drop,
        )

    def run(self) -> int:
        """Turn until the host is shut down."""
        write_note(
            "the guardian serves",
            incarnation=self._incarnation,
            groups=self._groups.path if self._groups else None,
        )
        self._notifier.send("READY=1")
        # What lives from the start lives to the end: a collector that never touches it leaves its
        # pages shared at a fork.
        gc.freeze()
        turned_at = time.monotonic()
        while not self._is_over():
            wait_seconds = self._turn()
            slept_from = time.monotonic()
            if slept_from - turned_at > _IDLE_SECONDS + 1:
                # Stopped, starved or in a long sweep: read what the agent said before its silence
                # is judged.
                self._agent.excuse_silence(slept_from - turned_at)
            for fd, events in self._poll.poll(wait_seconds):
                handler = self._handlers.get(fd)
                if handler is not None:
                    self._survive(partial(handler, events), None)
            turned_at = slept_from
        if self._groups is not None:
            self._groups.close()
        self._beats.close()
        self._watcher.close()
        self._timer.close()
        write_note("the guardian is done")
        return 0

    def _turn(self) -> float:
        """Do what is due, each part for itself (GUARD-7); return how long nothing will be."""
        mishaps = self._mishaps
        reaped = self._survive(self._collect, False)
        self._survive(self._obey_some, None)
        self._survive(self._tasks.end_lapsed, None)
        now, boot_now = time.monotonic(), self._read_clock()
        self._notifier.turn(now)
        self._survive(lambda: self._step_agent_endings(boot_now), None)
        self._survive(lambda: self._close_further(now), None)
        tasks_at = self._survive(lambda: self._tasks.turn(boot_now), boot_now)
        agent_at = self._survive(lambda: self._agent.turn(now), now)
        self._timer.set(tasks_at)
        waits = [
            _BUSY_SECONDS if self._tasks.count_running else _IDLE_SECONDS,
            tasks_at - boot_now,
            agent_at - now,
            self._notifier.next_at - now,
            *(ending.next_at - boot_now for ending in self._agent_endings),
        ]
        if self._mishaps > mishaps:
            return _MISHAP_SECONDS
        return 0.0 if self._asked or reaped else max(0.0, min(waits))

    def _survive(self, act: Callable[[], T], otherwise: T) -> T:
        """GUARD-7."""
        try:
            return act()
        except Exception:
            self._mishaps += 1
            said = traceback.format_exc()
            if said not in self._said and len(self._said) < _MISHAPS_NOTED:
                self._said.add(said)  # what fails at every turn is said once
                write_note(f"a part of the guardian failed and is passed over: {said}")
            return otherwise

    def _obey_some(self) -> None:
        launches = 0
        for _ in range(min(_REQUESTS_PER_TURN, len(self._asked))):
            request = self._asked.popleft()
            mishaps = self._mishaps
            self._survive(partial(self._obey, request), None)
            if self._mishaps > mishaps:
                self._agent.refuse(f"the guardian failed to carry out a {type(request).__name__}")
            launches += isinstance(request, LaunchTask)
            if launches == _LAUNCHES_PER_TURN:
                break

    # ---- what comes in

    def _take_signals(self) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        signal.signal(
            signal.SIGCHLD, signal.SIG_DFL
        )  # some starters ignore it, which eats exit statuses
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._handle(read_fd, self._read_signals)
        return read_fd

    def _read_signals(self, _events: int) -> None:
        for number in os.read(self._wake_fd, 4096):
            if number == signal.SIGHUP:
                write_note("told to replace the agent")
                self._agent.retire(for_good=False)
            elif number in (signal.SIGTERM, signal.SIGINT):
                self._begin_close()

    def _collect(self) -> bool:
        """Reap what has ended, orphans of tasks included (WATCH-2). True when that was anything:
        there may be more (WATCH-3).

        Zombies that pile up make every look for a runaway slower, so a flood of them is taken in
        several portions.
        """
        exits: list[Exit] = []
        for _ in range(_PORTIONS_PER_TURN):
            portion = self._watcher.collect()
            exits += portion
            if len(portion) < MAX_EXITS:
                break
        for found in exits:
            if self._agent.take_exit(found.pid, found.exit_code, found.signal):
                self._forest.note_exit(found.pid)
                self._asked.clear()  # the next agent asks for a snapshot and begins from there
                self._end_agent_tree()
            else:
                self._tasks.take_exit(found)
        return bool(exits)

    def _hear_agent(self, events: int) -> None:
        if events & select.EPOLLOUT:
            self._agent.flush()
        if events & ~select.EPOLLOUT:
            heard = self._agent.read()
            for request in heard:
                if isinstance(request, Extend):
                    self._tasks.extend(
                        request.deadlines
                    )  # and once more in its turn, after the launches before it
            self._asked.extend(heard)

    def _obey(self, request: Request) -> None:
        if isinstance(request, LaunchTask):
            self._tasks.launch(request)
        elif isinstance(request, Extend):
            self._tasks.extend(request.deadlines)
        elif isinstance(request, StopTask):
            self._tasks.stop(request.key, request.grace_seconds)
        elif isinstance(request, Ack):
            self._tasks.ack(request.keys)
        elif isinstance(request, AgentHello):
            self._agent.greet(self._tasks.make_snapshot(self._incarnation, request.number))
            if self._closing:
                self._agent.tell(Stopping())
        else:
            assert isinstance(request, AgentAlive)  # being heard is most of what it is for
            if request.holding and 0.0 < self._ack_until < INF:
                self._ack_until = min(time.monotonic() + _ACK_SECONDS, self._hold_until)

    # ---- the ends

    def _end_agent_tree(self) -> None:
        """What a dead agent left (a probe, a stack dumper) goes too."""
        agent_tree = self._agent.tree
        if agent_tree is None:
            return
        if self._forest.is_surely_empty(agent_tree):
            self._forest.remove(agent_tree)
            return
        ending = TreeEnding(
            agent_tree,
            self._forest,
            now=self._read_clock(),
            grace_seconds=0.0,
            kill_limit_seconds=self._config.kill_limit_seconds,
            signaller=self._signaller,
        )
        ending.first_exited = True
        self._agent_endings.append(ending)

    def _step_agent_endings(self, boot_now: float) -> None:
        for ending in list(self._agent_endings):
            if ending.next_at <= boot_now and ending.step(boot_now):
                self._agent_endings.remove(ending)
                self._forest.remove(ending.tree)

    def _begin_close(self) -> None:
        """GUARD-6. The first call asks nicely, the second does not."""
        again, self._closing = self._closing, True
        write_note(
            "told to shut down at once" if again else "told to shut down",
            running=self._tasks.count_running,
        )
        self._notifier.send("STOPPING=1")
        if not again:
            self._agent.tell(Stopping())
        self._tasks.close(at_once=again)
        if again:
            self._ack_until = 0.0

    def _close_further(self, now: float) -> None:
        if not self._closing or self._tasks.count_running or self._agent.retiring:
            return
        if self._ack_until == INF:
            self._ack_until, self._hold_until = now + _ACK_SECONDS, now + _HOLD_SECONDS
        if not self._tasks.count_held or now >= self._ack_until:
            self._agent.retire(for_good=True)
            if self._ack_until == 0.0:
                self._agent.kill()

    def _is_over(self) -> bool:
        return self._agent.retiring and self._agent.pid is None and not self._agent_endings

    # ---- the poll

    def _handle(self, fd: int, handler: Callable[[int], None]) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, select.EPOLLIN)

    def _set_agent_interest(self, fd: int, wants_to_write: bool) -> None:
        mask = select.EPOLLIN | (select.EPOLLOUT if wants_to_write else 0)
        if fd in self._handlers:
            self._poll.modify(fd, mask)
        else:
            self._handlers[fd] = self._hear_agent
            self._poll.register(fd, mask)

    def _drop(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            try:
                self._poll.unregister(fd)
            except OSError:
                pass  # closed already: the kernel forgot it by itself


def shield_from_oom(path: Path = Path("/proc/self/oom_score_adj")) -> int | None:
    """Make the guardian the last to go when memory runs out.

    Returns what tasks must be set to, None where they may keep what they inherit. A shield is never
    theirs, whether it was put up here or by a service manager (`OOMScoreAdjust`): the host's memory
    running out must cost a job, not sshd.
    """
    try:
        before = int(path.read_text())
    except (OSError, ValueError):
        return None
    try:
        if before > _GUARDIAN_OOM_SCORE:
            path.write_text(str(_GUARDIAN_OOM_SCORE))
    except OSError:  # an ordinary user may not lower it
        return 0 if before < 0 else None
    return max(before, 0)
