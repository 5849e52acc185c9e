"""Make the argument lists of podman and docker, and find which of the two is on this host.

A value never stands in an argument list where it could be read as an option.
"""

import os
import resource
import shutil
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.errors import ValidationError

Kind = Literal["podman", "docker"]
_PODMAN_INITS = ("/usr/libexec/podman/catatonit", "/usr/local/libexec/podman/catatonit")
_INITS = (*_PODMAN_INITS, "catatonit", "tini", "dumb-init")
# podman sets these limits by default (containers/common, `DefaultConfig`). A process without
# CAP_SYS_RESOURCE (root in a container) can set no more than its own hard limit; and podman itself
# has lowered nproc to the largest pid by then.
_PODMAN_LIMITS = {
    "nofile": (resource.RLIMIT_NOFILE, 1 << 20),
    "nproc": (resource.RLIMIT_NPROC, 1 << 22),
}


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """One runtime. Each method returns the argument list of a command; its sentence says what the
    command does.

    program: the path of its program. options: global options, right after the program.
    """

    kind: Kind
    program: str
    options: list[str] = []

    def call(self, *words: str) -> list[str]:
        """Return the argument list of one command."""
        return [self.program, *self.options, *words]

    def _stream(self, *words: str) -> list[str]:
        """Return the argument list of a command whose output is the task's own output. podman is
        told to print no warnings, because they would stand in the task's stderr. (On a machine
        where /sys/fs/cgroup is read-only, each start prints one.) The operator's options come
        later, so a log level among them wins."""
        quiet = ["--log-level=error"] if self.kind == "podman" else []
        return [self.program, *quiet, *self.options, *words]

    def find_image(self, image: str) -> list[str]:
        """Print an image's id. The command fails if the image is not on this host."""
        return self.call("image", "inspect", "--format", "{{.Id}}", "--", image)

    def pull(self, image: str) -> list[str]:
        """Pull the image, and print the progress."""
        return self.call("pull", "--", image)

    def create(
        self, name: str, options: Sequence[str], image: str, command: Sequence[str]
    ) -> list[str]:
        """Create the container. The words after the image are the container's command."""
        return self.call("create", "--name", name, "--pull=never", *options, "--", image, *command)

    def start(self, name: str, *, fed: bool = False) -> list[str]:
        """Start the container and stay attached: the client prints its output, then exits with
        its exit code. fed: True if the container reads the client's standard input. `docker
        start` has no option to ignore signals."""
        quiet = ["--sig-proxy=false"] if self.kind == "podman" else []
        given = ["--interactive"] if fed else []
        return self._stream("start", "--attach", *given, *quiet, name)

    def inspect(self, name: str) -> list[str]:
        """Print the container's state as JSON."""
        return self.call("inspect", "--type", "container", name)

    def attach(self, name: str) -> list[str]:
        """Attach to a container that runs, and print its output from now on."""
        return self._stream("attach", "--no-stdin", "--sig-proxy=false", name)

    def ask_restore(self) -> list[str] | None:
        """Print "true" if containers outlive their engine; None for podman, which has no engine."""
        if self.kind == "podman":
            return None
        return self.call("info", "--format", "{{.LiveRestoreEnabled}}")

    def kill(self, name: str, signal_name: str) -> list[str]:
        """Signal the container's first process."""
        return self.call("kill", "--signal", signal_name, name)

    def remove(self, *names: str) -> list[str]:
        """Remove containers, and kill those that run."""
        quick = ["--time", "0", "--ignore"] if self.kind == "podman" else []
        return self.call("rm", "--force", "--volumes", *quick, *names)

    def list_names(self, label: str, value: str) -> list[str]:
        """Print the names of all containers with this label, ended ones too, one a line."""
        filters = ("--filter", f"label={label}={value}", "--format", "{{.Names}}")
        return self.call("ps", "--all", "--no-trunc", *filters)


class Traits(msgspec.Struct, frozen=True, kw_only=True):
    """Traits of this host that decide how a container is made.

    uid, gid: the agent's user and group. cdi: True if NVIDIA's devices are described for CDI. amd:
    True if an AMD driver is loaded. selinux: True if SELinux is. memory_limits: True if a limit can
    be set. init: the path of a small init; "" for none. limits: the ulimits that the runtime would
    set too high. shm_bytes: the size of a container's own /dev/shm if it cannot share the host's
    IPC namespace (podman without root binds /dev/mqueue, which some machines lack); 0 if it shares
    it.
    """

    uid: int
    gid: int
    cdi: bool = False
    amd: bool = False
    selinux: bool = False
    memory_limits: bool = True
    init: str = ""
    limits: dict[str, int] = {}
    shm_bytes: int = 0


def find_runtime(
    asked: Kind | None, options: Mapping[str, Sequence[str]], environ: Mapping[str, str]
) -> Runtime:
    """Return the runtime to use: the one that was asked for; else podman; else docker. options: the
    operator's options for each runtime. Raises ValidationError, which names the programs to
    install."""
    path = environ.get("PATH") or os.defpath
    kinds: tuple[Kind, ...] = (asked,) if asked else ("podman", "docker")
    for kind in kinds:
        program = shutil.which(kind, path=path)
        if program is not None:
            given = list(options.get(kind, ()))
            found = [*_find_options(kind, given, path), *given]
            return Runtime(kind=kind, program=program, options=found)
    wanted = asked or "neither podman nor docker"
    raise ValidationError(
        f"this job runs in a container, and {wanted} is {'not ' if asked else ''}installed on "
        f"this host; install {asked or 'podman (or docker)'} there, or send the job to a host that "
        "has it",
        field="runtime",
    )


def _find_options(kind: Kind, given: Sequence[str], path: str) -> list[str]:
    """Return the option that chooses runc, because crun cannot run under the hybrid layout of
    control groups."""
    chosen = any(word.split("=")[0] == "--runtime" for word in given)
    if kind != "podman" or chosen or not is_hybrid():
        return []
    runc = shutil.which("runc", path=path)
    return ["--runtime", runc] if runc else []


def is_hybrid(root: str = "/sys/fs/cgroup") -> bool:
    """Return True if control groups of both versions are mounted."""
    return os.path.isdir(f"{root}/unified") and not os.path.exists(f"{root}/cgroup.controllers")


def read_traits(kind: Kind, environ: Mapping[str, str]) -> Traits:
    """Return the traits of this host that decide how podman or docker makes a container here. This
    looks at a few files; no program is run."""
    uid = os.getuid()
    shared = uid == 0 or kind == "docker" or os.path.isdir("/dev/mqueue")
    return Traits(
        uid=uid,
        gid=os.getgid(),
        cdi=any(_has_nvidia(folder) for folder in ("/etc/cdi", "/var/run/cdi")),
        amd=os.path.exists("/dev/kfd"),
        selinux=os.path.exists("/sys/fs/selinux/enforce"),
        memory_limits=uid == 0 or kind == "docker" or _is_delegated(uid),
        init="docker-init" if kind == "docker" else _find_init(environ.get("PATH") or os.defpath),
        limits=_find_limits() if kind == "podman" else {},
        shm_bytes=0 if shared else _find_half_memory(),
    )


def _find_limits() -> dict[str, int]:
    found: dict[str, int] = {}
    if may_raise_limits():
        return found
    for name, (number, wanted) in _PODMAN_LIMITS.items():
        hard = resource.getrlimit(number)[1]
        limits = [hard] if hard != resource.RLIM_INFINITY else []
        if name == "nproc":
            limits += _read_numbers("/proc/sys/kernel/pid_max")
        if limits and min(limits) < wanted:
            found[name] = min(limits)
    return found


def _find_half_memory() -> int:
    """Return half of the machine's memory in bytes, the size that Linux itself gives a tmpfs."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def may_raise_limits() -> bool:
    """Return True if this process has CAP_SYS_RESOURCE."""
    try:
        with open("/proc/self/status") as lines:
            masks = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
        return any(mask >> 24 & 1 for mask in masks)
    except (OSError, ValueError):
        return False


def _read_numbers(path: str) -> list[int]:
    try:
        with open(path) as file:
            return [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []


def _has_nvidia(folder: str) -> bool:
    try:
        return any(name.startswith("nvidia") for name in os.listdir(folder))
    except OSError:
        return False


def _is_delegated(uid: int) -> bool:
    """Return True if an ordinary user may limit memory, which needs the controller delegated by
    systemd."""
    service = f"/sys/fs/cgroup/user.slice/user-{uid}.slice/user@{uid}.service"
    try:
        with open(f"{service}/cgroup.controllers") as file:
            return "memory" in file.read().split()
    except OSError:
        return False


def _find_init(path: str) -> str:
    return next((found for name in _INITS if (found := shutil.which(name, path=path))), "")
