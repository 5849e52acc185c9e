"""Start a program: fork, a few calls, exec. The caller must be single-threaded.

The child is the native starter where the package has one (`process.starter`), else a fork of this
process; both take the same steps and say the same.

The start is finished in two steps so that the caller never waits for a disk: `spawn` returns as
soon as the child exists, and `Child.error_fd` becomes readable when the exec happened or failed
(`read_start`). A child stuck in `chdir` on a dead network folder therefore holds up nothing else.

SPAWN-1  Between fork and exec the child is blocked from every signal until its handlers are reset:
         a handler of the parent that ran there would write into the parent's wake-up pipe.
- The parent-death signal is set before anything that may block, and the parent is checked
  after it, so no child survives a parent that died in between.
SPAWN-3  A child that was forked is always returned, even if a later step fails, because a child
         that is not known would run beside the one that is started in its place.
SPAWN-4  The caller keeps `SPARE_DESCRIPTORS` for itself: it must still be able to look for, signal
         and reap what it has started. A start that would use them up fails as if there were none.
"""

import contextlib
import errno
import fcntl
import os
import resource
import signal
import termios
from collections.abc import Iterable, Mapping
from typing import NoReturn

import msgspec

from holdfast.errors import ValidationError
from holdfast.process import syscalls
from holdfast.process.keeper import Slot
from holdfast.process.starter import Launch, find_starter, name_limit, name_path

_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_LOG_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_CHILD_FAILED = 127
CANNOT_EXECUTE, NOT_FOUND = 126, 127  # the exit codes of shells
_PIPE_BYTES = 4096
SPARE_DESCRIPTORS = 16
# Errors of a machine that lacks something, whichever program was started.
_SHORTAGE_NAMES = "EMFILE ENFILE ENOMEM ENOBUFS EAGAIN ENOSPC EDQUOT EIO EROFS"
_SHORTAGES = frozenset(getattr(errno, name) for name in _SHORTAGE_NAMES.split())
# Errors that no other try on this machine mends, each with a shell's exit code.
_FOR_GOOD = {
    **dict.fromkeys((errno.EACCES, errno.ENOEXEC, errno.E2BIG), CANNOT_EXECUTE),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG), NOT_FOUND),
}
# In these the program has no part.
_OWN_STAGES = frozenset({"prepare", "fork", "group", "stdin", "stdout", "stderr"})


class SpawnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start, and how.

    argv: the program and its arguments; a name without a slash is looked up in the PATH of `env`.
    env: the whole environment. cwd: the working folder; None for the caller's. stdin: a file to
    read; None for /dev/null. stdout, stderr: files to append to, made 0600; None to inherit.
    stdout_pipe, stderr_pipe: descriptors that the child writes to, where they are not -1; the file
    of stdout is then made, to show that the start came so far, and that of stderr is made by the
    first byte (LOGW-1). stdin_pipe: a descriptor to read instead of a file, where it is not -1.
    terminal: True where `stdin_pipe` is a terminal, which becomes the controlling one of the child.
    group_procs: the path of the `cgroup.procs` to join before the exec.
    oom_score_adj: the score to set; None to set none. pass_fds: descriptors to inherit under the
    same numbers; all others are closed. parent_death_signal: the signal to the child when the
    caller dies; 0 for a child that outlives it. descriptor_limit: the (soft, hard) RLIMIT_NOFILE of
    the child, None for the caller's. brand: the numbers of the task and the host, which the child's
    descendants keep. keeper: the slot of a keeper between caller and child (KEEPER-1), where the
    starter works.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    stdout_pipe: int = -1
    stderr_pipe: int = -1
    stdin_pipe: int = -1
    terminal: bool = False
    group_procs: str | None = None
    oom_score_adj: int | None = None
    pass_fds: tuple[int, ...] = ()
    parent_death_signal: int = signal.SIGKILL
    descriptor_limit: tuple[int, int] | None = None
    brand: tuple[int, int] | None = None
    keeper: Slot | None = None


class Child:
    """A child that was forked.

    pidfd: -1 where none could be opened (SPAWN-3); its watcher (`process.watch`) closes it.
    error_fd: the pipe of the start, which `read_start` closes. hosts_fault: True where `read_start`
    found that the machine, not the program, is why the program did not start. start_code: 126 or
    127 where `read_start` found that the program, or its folder, can never be started here; else
    None. launch: the native starter's memory, until the exec (STARTER-2). started_at:
    CLOCK_BOOTTIME seconds. keeper: the slot of the keeper, where `pid` is a keeper's and the
    program is its child; else None.
    """

    __slots__ = (
        "_program_pid", "error_fd", "hosts_fault", "keeper", "launch", "pid", "pidfd", "start_code",
        "started_at",
    )  # fmt: skip

    def __init__(
        self,
        pid: int,
        pidfd: int,
        error_fd: int,
        started_at: float,
        launch: Launch | None = None,
        keeper: Slot | None = None,
    ) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.error_fd = error_fd
        self.started_at = started_at
        self.launch = launch
        self.keeper = keeper
        self._program_pid = pid
        self.hosts_fault = False
        self.start_code: int | None = None

    @property
    def program_pid(self) -> int:
        """Return the program's own pid, once it runs."""
        return (self.keeper.pid if self.keeper is not None else 0) or self._program_pid

    def drop_keeper(self) -> None:
        """Note that the keeper is gone, because its slot is another's from now on."""
        self._program_pid, self.keeper = self.program_pid, None


def _list_candidates(request: SpawnRequest) -> list[bytes]:
    """Return the paths at which the program may lie, in the order in which they are tried."""
    program = request.argv[0]
    if "/" in program:
        return [os.fsencode(program)]
    folders = request.env.get("PATH", _DEFAULT_PATH).split(":")
    return [os.fsencode(f"{folder or '.'}/{program}") for folder in folders]


class _SpawnPlan:
    """The data that the child needs, encoded before the fork.

    Raises:
        ValidationError: no kernel could start the program: its name is empty, a word has a NUL
        character, or an environment name is empty or has a `=`.
    """

    __slots__ = ("argv", "candidates", "env", "request")

    def __init__(self, request: SpawnRequest) -> None:
        if not request.argv or not request.argv[0]:
            sentence = "the program's name, the first word of the command, is empty"
            raise ValidationError(sentence, field="argv")
        if "" in request.env or "=" in "".join(request.env):
            name = next(name for name in request.env if not name or "=" in name)
            sentence = f"{name!r} cannot be the name of an environment variable"
            raise ValidationError(sentence, field="env")
        self.request = request
        self.argv = _encode_words(request.argv, "argv")
        self.env = syscalls.WordArray(_encode_words(map("=".join, request.env.items()), "env"))
        self.candidates = _list_candidates(request)


def _encode_words(words: Iterable[str], field: str) -> list[bytes]:
    """Return the bytes of each word, all encoded at once."""
    words = tuple(words)
    try:
        found = os.fsencode("\0".join(words)).split(b"\0") if words else []
    except UnicodeEncodeError:
        sentence = "half of a surrogate pair cannot be passed to a program"
        raise ValidationError(sentence, field=field) from None
    if len(found) != len(words):
        raise ValidationError("a NUL character cannot be passed to a program", field=field)
    return found


def spawn(request: SpawnRequest, *, spare_descriptors: int = SPARE_DESCRIPTORS) -> Child:
    """Fork a child that becomes `request`'s program, leader of its own session and process group.

    Raises, when nothing was started:
        ValidationError: see `_SpawnPlan`.
        OSError: the kernel could not make a process or a descriptor (EAGAIN, ENOMEM, EMFILE;
        SPAWN-4).
    """
    plan = _SpawnPlan(request)
    starter = None if request.pass_fds else find_starter()
    error_fd, child_fd = _open_pipe(spare_descriptors)
    launch: Launch | None = None
    try:
        started_at = syscalls.read_boottime()
        if starter is None:
            pid = _fork(plan, child_fd)
        else:
            for fd in (child_fd, request.stdin_pipe, request.stdout_pipe, request.stderr_pipe):
                if fd >= 0:
                    os.set_inheritable(fd, True)
            launch = Launch(starter, _name_start(plan, child_fd), plan.env)
            pid = launch.pid
    except OSError:
        os.close(error_fd)
        raise
    finally:
        os.close(child_fd)
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        pidfd = -1
    keeper = None if launch is None else request.keeper
    return Child(pid, pidfd, error_fd, started_at, launch, keeper)


def _name_start(plan: _SpawnPlan, error_fd: int) -> syscalls.WordArray:
    """Return the command line of the starter, in the order in which `starter.c` reads it."""
    request = plan.request
    death, score, keeper = request.parent_death_signal, request.oom_score_adj, request.keeper
    words = [
        "holdfast-starter",
        str(error_fd),
        str(int(death)) if death else "",
        str(os.getpid()),
        *name_limit(request.descriptor_limit),
        *name_limit(request.brand),
        "" if score is None else str(score),
        *map(name_path, (request.group_procs, request.cwd)),
        *map(name_path, (request.stdout, request.stderr)),
        *("" if fd < 0 else str(fd) for fd in (request.stdout_pipe, request.stderr_pipe)),
        "" if keeper is None else f"{keeper.fd}:{keeper.offset}",
        name_path(request.stdin),
        "" if request.stdin_pipe < 0 else str(request.stdin_pipe),
        "yes" if request.terminal else "",
        str(len(plan.candidates)),
    ]
    return syscalls.WordArray([*_encode_words(words, "cwd"), *plan.candidates, *plan.argv])


def _fork(plan: _SpawnPlan, error_fd: int) -> int:
    """Return the pid of a fork that becomes the program. Raises OSError."""
    argv, parent = syscalls.WordArray(plan.argv), os.getpid()
    old_mask = syscalls.block_all_signals()
    try:
        pid = os.fork()
        if pid == 0:
            _become(plan, argv, error_fd, parent)
    finally:
        syscalls.restore_signals(old_mask)
    return pid


def _open_pipe(spare: int) -> tuple[int, int]:
    """Open the pipe of a start. The kernel gives the lowest free numbers, so the numbers show how
    many are left (SPAWN-4)."""
    error_fd, child_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY or max(error_fd, child_fd) + spare < limit:
        return error_fd, child_fd
    os.close(error_fd)
    os.close(child_fd)
    raise OSError(
        errno.EMFILE, f"of {limit} descriptors only the last {spare} are free, and those are kept"
    )


def raise_descriptor_limit() -> tuple[int, int]:
    """Raise this process's limit on descriptors as far as allowed; return the limit before.

    Its children keep the earlier limit, because a program that uses `select` breaks above 1024.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # "unlimited" may be more than this kernel gives
    return soft, hard


def _become(plan: _SpawnPlan, argv: syscalls.WordArray, error_fd: int, parent: int) -> NoReturn:
    """Run the child's steps until the exec; never return and never raise, because the child is a
    copy of its parent."""
    request = plan.request
    stage = "prepare"
    try:
        if request.parent_death_signal:
            syscalls.set_parent_death_signal(request.parent_death_signal)
            if os.getppid() != parent:
                os._exit(_CHILD_FAILED)
        os.setsid()
        pipes = (request.stdin_pipe, request.stdout_pipe, request.stderr_pipe)
        for number, fd in enumerate(pipes):
            if fd >= 0:
                os.dup2(fd, number)
        # Not left to the exec: a child that is stuck before it must not hold its parent's locks.
        syscalls.close_descriptors_from(3, (error_fd, *request.pass_fds))
        for fd in request.pass_fds:
            os.set_inheritable(fd, True)
        syscalls.reset_signal_handlers()
        syscalls.unblock_all_signals()
        if request.descriptor_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, request.descriptor_limit)
        if request.brand is not None:
            # Only root may raise a lower brand; the other evidence must do then.
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(syscalls.RLIMIT_LOCKS, request.brand)
        if request.oom_score_adj is not None:
            # An ordinary user may not lower the score; the task is then only killed sooner.
            with contextlib.suppress(OSError):
                syscalls.write_file("/proc/self/oom_score_adj", str(request.oom_score_adj))
        if request.group_procs is not None:
            stage = "group"
            syscalls.write_file(request.group_procs, "0")
        stage = "cwd"
        if request.cwd is not None:
            os.chdir(request.cwd)
        stage = "stdin"
        if request.stdin_pipe < 0:
            os.dup2(os.open(request.stdin or os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
        if request.terminal:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        stage = "stdout"
        _open_log(request.stdout, 1, request.stdout_pipe)
        if request.stderr_pipe < 0:
            stage = "stderr"
            _open_log(request.stderr, 2, -1)
        stage = "exec"
        code, interpreter_missing = _exec_first(plan, argv)
        _report(error_fd, "interpreter" if interpreter_missing else stage, code)
    except OSError as error:
        _report(error_fd, stage, error.errno or 0)
    except BaseException as error:
        _report(error_fd, f"{stage}: {error!r}", 0)
    finally:
        os._exit(_CHILD_FAILED)


def _exec_first(plan: _SpawnPlan, argv: syscalls.WordArray) -> tuple[int, bool]:
    """Try each candidate as a shell does: pass over the missing, remember what may not be run."""
    remembered = errno.ENOENT
    for path in plan.candidates:
        code = syscalls.execve(path, argv, plan.env)
        if code == errno.ENOENT and os.path.lexists(path):
            return code, True
        if code == errno.EACCES:
            # A folder of PATH that may not be looked into does not make the program forbidden.
            if len(plan.candidates) == 1 or os.path.lexists(path):
                remembered = code
        elif code not in (errno.ENOENT, errno.ENOTDIR):
            return code, False
        elif len(plan.candidates) == 1:
            remembered = code
    return remembered, False


def _open_log(path: str | None, number: int, pipe: int) -> None:
    if path is not None:
        fd = os.open(path, _LOG_FLAGS, 0o600)
        if pipe < 0:
            os.dup2(fd, number)
        else:
            os.close(fd)


def _report(error_fd: int, stage: str, code: int) -> None:
    os.write(error_fd, f"{stage}\0{code}".encode(errors="replace")[:_PIPE_BYTES])


def signal_group(pid: int, number: int) -> bool:
    """Signal the process group of a child that was not reaped yet. Returns False where that is not
    allowed.

    A child that was forked a moment ago leads no group yet. It is signalled alone then, and
    receives the signal when its handlers are reset (SPAWN-1).
    """
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(pid, number)
            return True
    return False


def read_start(child: Child, request: SpawnRequest) -> str | None:
    """Return how the start went: None is undecided, "" is running, else a sentence with the reason
    of the failure.

    Once that is decided, `child.error_fd` is closed and -1.
    """
    if child.error_fd < 0:
        return ""
    try:
        data = os.read(child.error_fd, _PIPE_BYTES)
    except BlockingIOError:
        return None
    os.close(child.error_fd)
    child.error_fd = -1
    launch, child.launch = child.launch, None
    if data:
        stage, _, number = data.decode(errors="replace").partition("\0")
        code = int(number or 0)
    elif launch is not None and (code := launch.read_errno()):
        stage = "exec" if code == errno.E2BIG else "prepare"
    else:
        return ""
    child.hosts_fault = code in _SHORTAGES or stage in _OWN_STAGES
    if stage in ("exec", "cwd"):
        child.start_code = _FOR_GOOD.get(code)
    elif stage == "interpreter":
        child.start_code = CANNOT_EXECUTE
    return _describe(stage, code, request)


def _describe(stage: str, code: int, request: SpawnRequest) -> str:
    program = request.argv[0]
    why = os.strerror(code) if code else "an unexpected error"
    searched = "" if "/" in program else " is in no folder of PATH"
    if stage == "fork":
        return f"no process can be made: {why}"
    if stage == "cwd":
        return f"the working folder {request.cwd!r} cannot be entered: {why}"
    if stage in ("stdin", "stdout", "stderr"):
        return f"the {stage} file {getattr(request, stage)!r} cannot be opened: {why}"
    if stage == "group":
        return f"the control group {request.group_procs!r} cannot be joined: {why}"
    if stage == "interpreter":
        missing = "the interpreter it names in its first line does not"
        return f"the program {program!r} exists, but {missing}"
    if stage != "exec":
        return f"the program {program!r} could not be prepared ({stage}): {why}"
    if code == errno.EACCES and os.path.isdir(os.path.join(request.cwd or "", program)):
        return f"{program!r} is a folder, not a program"
    mend = "install it on the host, or give its full path"
    if program.endswith(".py"):
        mend = f"a Python script is started as `python {program}`"
    sentences = {
        errno.ENOENT: f"no such program: {program!r}{searched}; {mend}",
        errno.ENOTDIR: f"no such program: a part of {program!r} is not a folder",
        errno.EACCES: f"permission denied: {program!r} may not be executed; make it executable "
        "(chmod +x)",
        errno.ENOEXEC: f"{program!r} is neither a program for this machine nor a script with a #! "
        "line",
        errno.E2BIG: "the arguments and the environment together are too large for the kernel; put "
        "the input in a file",
    }
    return sentences.get(code, f"the program {program!r} cannot be started: {why}")
