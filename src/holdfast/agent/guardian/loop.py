"""Serve a host as its guardian, the parent of every task.

The tasks are the guardian's children, so that an agent may crash, freeze or be upgraded meanwhile.
The environment of its agent holds HOLDFAST_GUARDIAN_FD (the line of `wire.guardian`),
HOLDFAST_SESSIONS_FD (the line of `wire.sessions.guardian`), HOLDFAST_BEAT_FD and HOLDFAST_BEAT_SOCKET
(the beat socket and its path, which outlive agents so that beats queue meanwhile),
HOLDFAST_INCARNATION, HOLDFAST_GUARDIAN_PID, HOLDFAST_KEEPERS, HOLDFAST_HOST_MARK and
HOLDFAST_GROUPS (for `guardian_folder.sweep_after_guardian`), and HOLDFAST_MEMORY_LIMITS
(`guardian_env.MemoryLimits`).

The guardian is one poll loop, without threads and without a GPU library. It carries out the
requests of `wire.guardian` and decides nothing else, except:

GUARD-5  One guardian per folder (a lock); at its start nothing of an earlier one lives
         (`process.sweep`), and it is a new incarnation of the host, by which the controller knows
         that the earlier one's tasks are dead.
GUARD-6  Its own end ends every task: in order on TERM or INT (stop with each task's grace, wait for
         the ends to be acknowledged), by parent-death signal and sweep when it is killed.
GUARD-7  A failure of one request, one descriptor or one part of a turn neither ends the loop nor
         keeps the other parts from being done; it is noted with its traceback.
GUARD-8  Deadlines are kept on a clock that counts suspension, and by a timer of that clock: a host
         that wakes up ends the tasks whose leases ended in its sleep in its first turn. An
         extension counts from the moment at which it is read, though other requests are carried out
         before it.

GUARD-10  A host whose folder was removed ends, and so does a host whose agents cannot read their
         config, once no task runs. The exit status tells the program that started the guardian to
         start it anew, or to report the bad config.

Signals: TERM or INT shuts the host down, a second one without grace; HUP replaces the agent by the
program on disk now. A second signal within a second counts as the first one sent twice (`timeout`
signals its child, and then its child's group).
"""

import gc
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.agent.guardian.child import EXIT_BAD_CONFIG, INF, AgentChild
from holdfast.agent.guardian.config import GuardianConfig
from holdfast.agent.guardian.guardian_folder import GuardianFolder, Notifier, read_group_homes
from holdfast.agent.guardian.sessions import GuardianSessions
from holdfast.agent.guardian.tasks import HostTasks
from holdfast.errors import Conflict
from holdfast.process import loop
from holdfast.process.endings.ending import Signaller
from holdfast.process.groups import open_group_home
from holdfast.process.loop import Mishaps, Poller
from holdfast.process.nursery import Nursery
from holdfast.process.spawn import raise_descriptor_limit
from holdfast.process.starter import find_starter
from holdfast.process.sweep import sweep
from holdfast.process.syscalls import (
    BootTimer,
    become_subreaper,
    read_boottime,
    set_parent_death_signal,
)
from holdfast.process.urgent import urgent
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
EXIT_FOLDER_GONE = 75  # another start makes the folder anew
_BAD_CONFIGS = 3
_ACK_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
_AGENT_SECONDS = 30.0  # an agent that is being started may report the ends within this
_HOLD_SECONDS = 60.0  # an agent delays ends for half of this at most (SAVE-1)
_IDLE_SECONDS = 5.0
# Many launches at once must not delay exits: a start takes about 0.2 ms, a fork half a
# millisecond. Most hosts have eight ranks. Other requests are quick, and stops that are read
# together are carried out together (TREE-5).
_LAUNCHES_PER_TURN = 8
_REQUESTS_PER_TURN = 256
_BUSY_SECONDS = 1.0  # orphans are reaped at least this often (WATCH-2)
_MISHAP_SECONDS = 0.1  # pause, because a failure at every turn must not use up a processor
_GUARDIAN_OOM_SCORE = -900


def run_guardian(
    config: GuardianConfig,
    *,
    signaller: Signaller | None = None,
    read_clock: Callable[[], float] = read_boottime,
) -> int:
    """Serve the host until told to stop; return the exit status: 0, `EXIT_ALREADY_SERVED`, or a
    status of GUARD-10.

    The calling process becomes the guardian. It must be single-threaded and have no children.
    `read_clock`: the clock of deadlines, CLOCK_BOOTTIME save in tests.
    """
    if config.die_with_parent:
        parent = os.getppid()
        set_parent_death_signal(signal.SIGTERM)
        if os.getppid() != parent:
            return 0
    try:
        folder = GuardianFolder(config.state_dir)
    except Conflict as error:
        _note(error.message)
        return EXIT_ALREADY_SERVED
    try:
        with urgent():
            return _Guardian(config, folder, signaller or Signaller(), read_clock).run()
    finally:
        folder.close()


def _note(sentence: str, **fields: object) -> None:
    loop.write_note(2, "guardian", sentence, fields)


class _Guardian:
    """Runs the guardian's loop and owns its parts."""

    def __init__(
        self,
        config: GuardianConfig,
        folder: GuardianFolder,
        signaller: Signaller,
        read_clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._read_clock = read_clock
        self._mishaps = Mishaps(_note)
        self._folder = folder
        self._descriptor_limit = raise_descriptor_limit()
        self._poller = Poller(self._mishaps)
        self._wake_fd = self._take_signals()
        survivors = sweep(
            config.host_id,
            group_homes=read_group_homes(config.state_dir),
            kill_limit_seconds=config.kill_limit_seconds,
        )
        if survivors:
            _note("processes of an earlier guardian survive SIGKILL", pids=survivors)
        become_subreaper()
        self._incarnation = os.urandom(16).hex()
        self._notifier = Notifier()
        self._nursery = Nursery(
            config.host_id,
            self._poller,
            self._mishaps,
            kill_limit_seconds=config.kill_limit_seconds,
            signaller=signaller,
            read_clock=read_clock,
        )
        self._groups = open_group_home(config.host_id) if config.use_groups else None
        if not folder.record_group_folder(self._groups.path if self._groups else ""):
            _note(
                "the disk is full: if this guardian is killed, the next one must find its tasks "
                "without their groups"
            )
        self._beats, beat_path = folder.open_beat_socket()
        self._timer = BootTimer()
        self._poller.handle(self._timer.fileno(), lambda _: self._timer.clear())
        self._asked: deque[Request] = deque()
        self._agent = self._make_agent(beat_path)
        oom_score_adj = shield_from_oom()
        self._tasks = HostTasks(
            nursery=self._nursery,
            mishaps=self._mishaps,
            group_home=self._groups,
            oom_score_adj=oom_score_adj,
            descriptor_limit=self._descriptor_limit,
            read_clock=read_clock,
            tell=self._agent.queue_answer,
            note=_note,
            look=lambda: self._read_signals(0),
        )
        self._make_sessions(oom_score_adj)
        self._closing = False
        self._exit_status, self._told_at = 0, -INF
        self._ack_until = self._hold_until = self._agent_until = INF
        self._holding = False  # the agent still sends what tasks left

    def _make_sessions(self, oom_score_adj: int | None) -> None:
        self._tasks.sessions = sessions = GuardianSessions(
            nursery=self._nursery,
            poller=self._poller,
            mishaps=self._mishaps,
            keepers=self._tasks.keepers,
            group_home=self._groups,
            oom_score_adj=oom_score_adj,
            descriptor_limit=self._descriptor_limit,
            find_place=self._tasks.find_place,
            note=_note,
        )
        self._agent.open_session_line = sessions.open_line

    def _make_agent(self, beat_path: str) -> AgentChild:
        env = {name: value for name, value in os.environ.items() if name not in Notifier.VARIABLES}
        env |= {
            "HOLDFAST_BEAT_FD": str(self._beats.fileno()),
            "HOLDFAST_BEAT_SOCKET": beat_path,
            "HOLDFAST_INCARNATION": self._incarnation,
            "HOLDFAST_GUARDIAN_PID": str(os.getpid()),
            "HOLDFAST_HOST_MARK": self._config.host_id,
            "HOLDFAST_KEEPERS": "yes" if find_starter() is not None else "no",
            "HOLDFAST_GROUPS": self._groups.path if self._groups else "",
            "HOLDFAST_MEMORY_LIMITS": "group" if self._groups and self._groups.memory else "watch",
        }
        return AgentChild(
            self._config,
            env=env,
            pass_fds=(self._beats.fileno(),),
            descriptor_limit=self._descriptor_limit,
            nursery=self._nursery,
            poller=self._poller,
            note=_note,
            hear=self._hear_agent,
            gone=self._lose_agent,
        )

    def run(self) -> int:
        """Run the loop until the host is shut down; return the exit status."""
        _note(
            "the guardian serves",
            incarnation=self._incarnation,
            groups=self._groups.path if self._groups else None,
        )
        self._notifier.send("READY=1")
        # Objects of the start live to the end; uncollected, their pages stay shared at a fork.
        gc.freeze()
        turned_at = time.monotonic()
        while not self._is_over():
            wait_seconds = self._turn()
            slept_from = time.monotonic()
            if slept_from - turned_at > _IDLE_SECONDS + 1:
                # The guardian was stopped or starved: the agent's messages are read before it is
                # judged.
                self._agent.excuse_silence(slept_from - turned_at)
            self._poller.poll(wait_seconds)
            turned_at = slept_from
        if self._groups is not None:
            self._groups.close()
        self._beats.close()
        self._nursery.close()
        self._timer.close()
        _note("the guardian is done")
        return self._exit_status

    def _turn(self) -> float:
        """Do all the work that is due, each part for itself (GUARD-7); return the seconds to wait
        until more is due."""
        mishaps, survive = self._mishaps.count, self._mishaps.survive
        self._tasks.note_turn()
        reaped = survive(self._nursery.collect, False)
        survive(self._agent.flush, None)  # before the launches, which take longest
        survive(self._obey_some, None)
        survive(self._tasks.end_lapsed, None)
        now, boot_now = time.monotonic(), self._read_clock()
        self._notifier.turn(now)
        survive(lambda: self._close_further(now), None)
        tasks_at = survive(lambda: self._tasks.turn(boot_now), boot_now)
        trees_at = survive(lambda: self._nursery.turn(boot_now), boot_now)
        agent_at = survive(lambda: self._agent.turn(now), now)
        survive(self._agent.flush, None)
        self._timer.set(min(tasks_at, trees_at))
        if self._mishaps.count > mishaps:
            return _MISHAP_SECONDS
        if self._asked or reaped:
            return 0.0
        waits = [
            _BUSY_SECONDS if self._tasks.count_running else _IDLE_SECONDS,
            tasks_at - boot_now,
            trees_at - boot_now,
            agent_at - now,
            self._notifier.next_at - now,
        ]
        return max(0.0, min(waits))

    def _obey_some(self) -> None:
        launches = 0
        for _ in range(min(_REQUESTS_PER_TURN, len(self._asked))):
            request = self._asked.popleft()
            mishaps = self._mishaps.count
            self._mishaps.survive(partial(self._obey, request), None)
            if self._mishaps.count > mishaps:
                self._agent.refuse(f"the guardian failed to carry out a {type(request).__name__}")
            launches += isinstance(request, LaunchTask)
            if launches == _LAUNCHES_PER_TURN:
                break

    # ---- what comes in

    def _take_signals(self) -> int:
        wake_fd = loop.catch_signals()
        # A starter may ignore SIGCHLD, and the kernel would then discard exit statuses.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        self._poller.handle(wake_fd, self._read_signals)
        return wake_fd

    def _read_signals(self, _events: int) -> None:
        try:
            numbers = os.read(self._wake_fd, 4096)
        except BlockingIOError:
            return
        for number in numbers:
            if number == signal.SIGHUP:
                _note("told to replace the agent")
                self._agent.retire(for_good=False)
            elif not self._closing or time.monotonic() - self._told_at > _AGAIN_SECONDS:
                self._begin_close()

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
                self._agent.queue_answer(Stopping())
        else:
            assert isinstance(request, AgentAlive)  # reading it noted the sign of life
            self._holding = request.holding
            if request.holding and 0.0 < self._ack_until < INF:
                self._ack_until = min(time.monotonic() + _ACK_SECONDS, self._hold_until)

    # ---- the ends

    def _lose_agent(self) -> None:
        """Drop the requests of a dead agent, because the next one begins with a snapshot. End
        the host if no agent can start (GUARD-10)."""
        self._asked.clear()
        bad = self._agent.bad_configs
        if not bad or self._closing:
            return
        if not self._folder.is_there():
            self._exit_status, folder = EXIT_FOLDER_GONE, self._folder.folder
            _note(
                f"the folder {folder} was removed: this host ends, and its next start makes it anew"
            )
        elif bad >= _BAD_CONFIGS and not self._tasks.count_running:
            self._exit_status = EXIT_BAD_CONFIG
            _note("no agent can read its config, and no task runs: this host ends")
        else:
            return
        self._begin_close()
        self._agent_until = 0.0  # no agent will come

    def _begin_close(self) -> None:
        """Shut down (GUARD-6); at the second call without grace."""
        again, self._closing = self._closing, True
        self._told_at = time.monotonic()
        _note(
            "told to shut down at once" if again else "told to shut down",
            running=self._tasks.count_running,
        )
        self._notifier.send("STOPPING=1")
        if not again:
            self._agent.queue_answer(Stopping())
        self._tasks.close(at_once=again)
        if again:
            self._ack_until = 0.0

    def _close_further(self, now: float) -> None:
        if not self._closing or self._tasks.count_running or self._agent.retiring:
            return
        # All tasks have ended: the agent gets time to report the ends before it has to leave.
        if self._ack_until == INF:
            self._ack_until, self._hold_until = now + _ACK_SECONDS, now + _HOLD_SECONDS
            if self._agent_until == INF:
                self._agent_until = now + _AGENT_SECONDS
        elif not self._agent.greeted and self._ack_until > 0.0 and now < self._agent_until:
            self._ack_until = now + _ACK_SECONDS  # the signal ended the agent, too
        held = self._tasks.count_held or self._holding
        if not held or now >= self._ack_until:
            self._agent.retire(for_good=True)
            if self._ack_until == 0.0:
                self._agent.kill()

    def _is_over(self) -> bool:
        return self._agent.retiring and not self._nursery.busy


def shield_from_oom(path: Path = Path("/proc/self/oom_score_adj")) -> int | None:
    """Make the guardian the last process that the kernel kills when memory runs out. Return the
    score that tasks must be set to; None if they may keep the score that they inherit.

    Tasks never inherit a protected score, whether it was set here or by a service manager
    (`OOMScoreAdjust`), because the kernel has to kill a job before it kills sshd.
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
