"""Judge what the probes found on this machine, a function for each part."""

from collections.abc import Iterator, Sequence

from holdfast.core.doctor.facts import (
    AgentFacts,
    ClockFacts,
    ContainerFacts,
    DiskFacts,
    FileFacts,
    GpuFacts,
    GroupFacts,
    ImportFacts,
    LimitFacts,
    LocalFacts,
    SharedMemoryFacts,
    SystemFacts,
    ZoneFacts,
)
from holdfast.core.doctor.findings import DoctorFinding, ok, problem, warning
from holdfast.core.doctor.left_memory import is_told, name_removal, say_left_memory
from holdfast.core.words import say_bytes
from holdfast.version import name_install

LEAST_FREE_BYTES, LOW_FREE_BYTES = 256 << 20, 5 << 30
LOW_SHARE = 0.05
SLOW_SYNC_SECONDS = 0.05
"""A disk that takes longer for one small write through makes every submission as slow: a laptop's
SSD takes 1 to 5 ms, a network's disk up to 20."""
LEAST_OPEN_FILES = 4096
SMALL_SHM_BYTES = 1 << 30
LEAST_PYTHON = (3, 11)
_VENDORS = {"nvidia": ("NVIDIA", "nvidia"), "amd": ("AMD", "kfd")}


def judge_disk(facts: DiskFacts) -> Iterator[DoctorFinding]:
    """Yield findings about one folder: room, files, and how fast it writes through."""
    at = f"{facts.path} ({facts.use})"
    if facts.error:
        yield problem("disk", f"{at} cannot be written: {facts.error}", _name_disk_mend(facts))
        return
    free, total = facts.free_bytes, facts.total_bytes
    if free is not None and total is not None:
        said = f"{at} has {say_bytes(free)} free of {say_bytes(total)}"
        if free < LEAST_FREE_BYTES:
            yield problem("disk", said, "Free some: logs, checkpoints and images are the largest")
        elif free < LOW_FREE_BYTES and free < total * LOW_SHARE * 4:
            yield warning("disk", said, "Free some before logs and checkpoints need it")
        else:
            yield ok("disk", said)
    if facts.total_inodes and facts.free_inodes is not None:
        share = facts.free_inodes / facts.total_inodes
        if share < LOW_SHARE:
            say = problem if facts.free_inodes < 1000 else warning
            yield say(
                "disk",
                f"{at} has room for {facts.free_inodes} more files (inodes), {share:.0%} of all",
                "Delete many small files, as caches of packages, or make the file system anew with "
                "more inodes",
            )
    if facts.sync_seconds is not None and facts.sync_seconds > SLOW_SYNC_SECONDS:
        yield warning(
            "disk",
            f"{at} takes {facts.sync_seconds * 1000:.0f} ms for one small write through to the disk",
            "Move the folder to a local SSD: a database waits for such a write in each transaction",
        )


def _name_disk_mend(facts: DiskFacts) -> str:
    if "read-only" in facts.error.lower():
        return "Look in `dmesg` for errors of the disk, then mount it writable"
    return f"Make it this user's: chown -R $(id -u) {facts.path}"


def judge_file(facts: FileFacts) -> Iterator[DoctorFinding]:
    """Yield findings about the owner and the mode of a private file or folder."""
    at = f"{facts.path} ({facts.use})"
    if facts.error:
        yield problem("permissions", f"{at}: {facts.error}", "Look at it as its owner, or as root")
    elif facts.uid != facts.own_uid and facts.own_uid != 0:
        yield problem(
            "permissions",
            f"{at} belongs to uid {facts.uid}, and this is uid {facts.own_uid}",
            f"Work as its owner, or give it away: chown -R {facts.own_uid} {facts.path}",
        )
    elif facts.mode & 0o077:
        yield problem(
            "permissions",
            f"{at} has mode {facts.mode:04o}, so other users can read what only its owner should",
            f"chmod go= {facts.path}, and make the tokens in it anew if others use this machine",
        )
    else:
        yield ok("permissions", f"{at} is its owner's alone")


def judge_groups(facts: GroupFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about control groups."""
    if facts.usable and facts.memory:
        yield ok("cgroups", f"control groups ({facts.layout}) hold each task and limit its memory")
        return
    said = f"control groups ({facts.layout}) can be made here, but limit no memory"
    if not facts.usable:
        said = f"no control group ({facts.layout}) can be made in the one that this shell is in"
    yield warning(
        "cgroups",
        f"{said}, so an agent started here looks for a task's processes and memory by itself",
        "Run the agent as a service with Delegate=yes, or try `systemd-run --user --scope -p "
        "Delegate=yes holdfast agent …`; in a container, mount /sys/fs/cgroup writable",
    )


def judge_gpus(facts: GpuFacts) -> Iterator[DoctorFinding]:
    """Yield findings about devices whose driver does not answer, or about the devices."""
    if facts.devices:
        drivers = ", ".join(facts.drivers) or "of unknown version"
        yield ok("gpu", f"{facts.devices} GPUs answer, by the driver {drivers}")
    found = False
    for vendor, (name, node) in _VENDORS.items():
        nodes = [path for path in facts.nodes if node in path]
        why = facts.errors.get(vendor, "")
        if nodes and why:
            found = True
            yield problem(
                "gpu",
                f"{nodes[0]} is there, and {name}'s driver does not answer: {why[:200]}",
                "Run `nvidia-smi`: a driver that was upgraded works after a restart, and a "
                "container needs the driver's library (libnvidia-ml.so.1) from its host"
                if vendor == "nvidia"
                else "Look at `dmesg`, and load the module amdgpu",
            )
    if not facts.devices and not found:
        yield ok("gpu", "there are no GPUs here")


def judge_containers(facts: ContainerFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about podman or docker."""
    if not facts.program:
        yield warning(
            "containers",
            "neither podman nor docker is here, so jobs with an image run on other hosts",
            "Install podman (or docker), if this machine is to run jobs with an image",
        )
    elif facts.error:
        yield problem(
            "containers",
            f"{facts.program} does not work: {facts.error[-300:]}",
            "Run `podman info` or `docker info` as this user, and follow what it says",
        )
    else:
        yield ok("containers", f"{facts.program} works ({facts.version})")


def judge_limits(facts: LimitFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about how many files this user's processes may open."""
    soft = facts.open_files_soft
    if 0 <= soft < LEAST_OPEN_FILES:
        may = facts.open_files_hard < 0 or facts.open_files_hard >= LEAST_OPEN_FILES
        yield warning(
            "limits",
            f"a process may open {soft} files, and a controller with many hosts needs more",
            f"ulimit -n {LEAST_OPEN_FILES * 4}, or LimitNOFILE= in the service"
            if may
            else "Raise nofile in /etc/security/limits.conf, or LimitNOFILE= in the service",
        )
    else:
        yield ok("limits", f"a process may open {'any number of' if soft < 0 else soft} files")


def judge_shared_memory(facts: SharedMemoryFacts) -> Iterator[DoctorFinding]:
    """Yield findings about /dev/shm, through which the loaders of PyTorch and NCCL talk, and about
    the shared memory that ended programs left behind."""
    mend = "Mount it anew: mount -o remount,size=50% /dev/shm; a container gets --shm-size"
    if facts.error:
        yield problem("shm", f"/dev/shm cannot be written: {facts.error}", mend)
    elif facts.total_bytes < SMALL_SHM_BYTES:
        yield warning(
            "shm",
            f"/dev/shm has {facts.total_bytes >> 20} MiB, and data loaders and NCCL often need more",
            mend,
        )
    else:
        yield ok(
            "shm",
            f"/dev/shm has {say_bytes(facts.free_bytes)} free of {say_bytes(facts.total_bytes)}",
        )
    if is_told(facts.left):
        said = f"no process that doctor sees here uses {say_left_memory(facts.left)}"
        yield warning("shm", said, f"Unless a job still needs it: {name_removal(facts.left)}")
    elif facts.left_error:
        said = f"whether ended programs left shared memory is not known: {facts.left_error}"
        yield warning("shm", said, "Run doctor once more while fewer processes run")


def judge_zone(facts: ZoneFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about time zones, which schedules name."""
    if not facts.known:
        yield warning(
            "time-zone",
            f"TZ is {facts.zone!r}, which is no time zone, so this shell shows UTC",
            "Set TZ to a name such as Europe/Berlin, or unset it",
        )
    elif not facts.database:
        yield warning(
            "time-zone",
            "this system knows no time zones by name, so schedules in a zone are refused",
            "Install the package tzdata of the system, or `pip install tzdata`",
        )
    else:
        yield ok("time-zone", f"time zones are known{f', TZ is {facts.zone}' * bool(facts.zone)}")


def judge_clock(facts: ClockFacts) -> Iterator[DoctorFinding]:
    """Yield a warning where the kernel says that no service sets its clock."""
    if facts.synchronized is False:
        yield warning(
            "clock",
            "the kernel says that no service keeps this clock right",
            "Turn one on: `timedatectl set-ntp true`, or chrony. In a virtual machine its host may "
            "do it unseen",
        )


def judge_system(facts: SystemFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about the versions on this machine."""
    said = (
        f"Holdfast {facts.holdfast}, Python {facts.python}, {facts.kernel} "
        f"({facts.machine}), {facts.cpus} CPUs, {say_bytes(facts.memory_bytes)} of memory"
    )
    words = facts.python.split(".")
    version = tuple(int(word) for word in words[:2] if word.isdigit())
    if version and version < LEAST_PYTHON:
        yield problem("system", said, "Install Python 3.11 or newer, and Holdfast for it")
    else:
        yield ok("system", said)


def judge_import(facts: ImportFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about the package `holdfast` of one Python, because another project on PyPI
    has that name."""
    if facts.own or not facts.file:
        said = "imports Holdfast's own package" if facts.own else "has no package `holdfast`"
        yield ok("imports", f"{facts.python} {said}")
        return
    mend = f"Run `{facts.python} -m pip uninstall holdfast`, then install it: {name_install()}"
    if facts.near:
        mend = f"Rename {facts.file}, because Python looks in the folder of a script first"
    yield problem(
        "imports",
        f"{facts.python} imports `holdfast` from {facts.file}, which is not this project's, so jobs "
        "of that Python find neither beats nor checkpoints",
        mend,
    )


def judge_local(facts: LocalFacts) -> Iterator[DoctorFinding]:
    """Yield a finding about the `up` here, and about the port that one would take."""
    if facts.url and facts.listening:
        yield ok("ports", f"the `up` of {facts.folder} listens at {facts.url}")
    elif facts.url:
        yield problem(
            "ports",
            f"the `up` of {facts.folder} wrote the address {facts.url}, and no program listens there",
            f"It was killed: start `holdfast up` again in {facts.folder.rpartition('/')[0] or '/'}",
        )
    elif facts.port_taken:
        yield warning(
            "ports",
            f"another program listens on port {facts.port}, so an `up` here takes a free port",
            f"End it (`ss -ltnp sport = :{facts.port}` names it), or name a port: `holdfast up "
            "--port N`",
        )
    elif facts.port:
        yield ok("ports", f"port {facts.port} is free for a `holdfast up`")


def judge_agent(facts: AgentFacts) -> Iterator[DoctorFinding]:
    """Yield findings about this machine's agent and its way to the controller."""
    at = f"the agent of {facts.folder}"
    if facts.url and facts.url_error:
        yield problem(
            "agent",
            f"{at} cannot reach its controller {facts.url}: {facts.url_error}",
            "Look whether the controller runs, and whether a firewall or a proxy stands between",
        )
    if facts.running and facts.registered:
        yield ok("agent", f"{at} runs, for {facts.url}")
    elif facts.running:
        yield warning(
            "agent",
            f"{at} runs, and is no host of the controller yet",
            "Give it a join token: `holdfast token create --role join` at the controller, then "
            "`holdfast agent --join URL --token-file FILE` here",
        )
    else:
        yield warning(
            "agent",
            f"{at} does not run, so this machine gets no work",
            "Start it: `holdfast agent --join URL`, or its service",
        )


def judge_missed(parts: Sequence[str], seconds: float) -> Iterator[DoctorFinding]:
    """Yield a problem for each part that did not end within its time: what it asks hangs."""
    mends = {
        "disk": "Look in `dmesg` for a disk or a network mount that hangs: `mount`, `df` hang too",
        "gpu": "Look in `dmesg` for errors of the driver, and restart the machine if it hangs",
        "containers": "Restart the engine: `systemctl restart docker`, or `podman system migrate`",
        "database": "Look whether the server answers: `psql` with the same DSN",
    }
    for part in parts:
        yield problem(
            part.split(" ")[0],
            f"looking at {part} did not end within {seconds:.0f} s",
            mends.get(part.split(" ")[0], "Look in `dmesg` for what hangs"),
        )
