"""The facts that the doctor judges. None: it could not be read, or was not looked at."""

from datetime import datetime

import msgspec

from holdfast.core.doctor.left_memory import LeftMemory


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The root of the doctor's facts."""


class ControllerProblem(Facts, frozen=True):
    """A problem that a controller reports of itself. part: the part of it that has the problem."""

    part: str
    sentence: str
    mend: str


class ControllerFacts(Facts, frozen=True, kw_only=True):
    """Facts that a client found at the controller's address.

    source: where the address was found. plain: the address is http on another machine. error: the
    sentence of the failure, "" where the controller answered; error_code: its stable word.
    error_kind: "unreachable", "refused" (the token), "no_address" or "other". role, user, token_id:
    of the token. clock_seconds: how far this machine's clock is ahead of the controller's;
    clock_error_seconds: how far that may be off, half of the answer's time. dead_urls: further
    addresses that do not answer, each with its sentence. problems: what the controller reports of itself.
    """

    url: str = ""
    source: str = ""
    plain: bool = False
    error: str = ""
    error_code: str = ""
    error_kind: str = ""
    token_source: str = ""
    token_id: str = ""
    user: str = ""
    role: str = ""
    token_name: str = ""
    expires_at: datetime | None = None
    version: str = ""
    client_version: str = ""
    clock_seconds: float | None = None
    clock_error_seconds: float = 0.0
    dead_urls: dict[str, str] = {}
    problems: list[ControllerProblem] = []


class DiskFacts(Facts, frozen=True, kw_only=True):
    """One folder's disk. use: what the folder is for. sync_seconds: the median of small writes
    through to the disk. error: why the folder cannot be written."""

    path: str
    use: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    free_inodes: int | None = None
    total_inodes: int | None = None
    sync_seconds: float | None = None
    error: str = ""


class FileFacts(Facts, frozen=True, kw_only=True):
    """One private file or folder. own_uid: the user that looks. error: why it cannot be looked
    at."""

    path: str
    use: str
    mode: int = 0
    uid: int = 0
    own_uid: int = 0
    error: str = ""


class GroupFacts(Facts, frozen=True, kw_only=True):
    """Control groups. layout: "v2", "v1", "hybrid" or "none". usable: a group could be made, joined
    and removed. memory: memory can be limited there."""

    layout: str
    usable: bool
    memory: bool


class GpuFacts(Facts, frozen=True, kw_only=True):
    """Devices and their drivers. drivers: their versions. errors: why a vendor's driver cannot be
    asked. nodes: the device files that are there. devices: how many a driver lists."""

    devices: int = 0
    drivers: list[str] = []
    errors: dict[str, str] = {}
    nodes: list[str] = []


class ContainerFacts(Facts, frozen=True, kw_only=True):
    """The container engine. program: its path, "" where neither podman nor docker is there. error:
    why it does not work."""

    program: str = ""
    version: str = ""
    error: str = ""


class LimitFacts(Facts, frozen=True, kw_only=True):
    """Limits of this user's processes; -1 for none."""

    open_files_soft: int
    open_files_hard: int


class SharedMemoryFacts(Facts, frozen=True, kw_only=True):
    """The file system at /dev/shm. error: why it cannot be written. left: the shared memory that
    no process uses; left_error: why that is not known."""

    total_bytes: int = 0
    free_bytes: int = 0
    error: str = ""
    left: tuple[LeftMemory, ...] = ()
    left_error: str = ""


class ZoneFacts(Facts, frozen=True, kw_only=True):
    """Time zones. zone: the value of TZ. known: it is a zone. database: the names of zones can be
    looked up."""

    zone: str = ""
    known: bool = True
    database: bool = True


class ClockFacts(Facts, frozen=True, kw_only=True):
    """The kernel's word on the clock. synchronized: None where the kernel was not asked."""

    synchronized: bool | None = None


class SystemFacts(Facts, frozen=True, kw_only=True):
    """Versions and sizes."""

    holdfast: str
    python: str
    kernel: str
    machine: str
    cpus: int = 0
    memory_bytes: int = 0


class ImportFacts(Facts, frozen=True, kw_only=True):
    """The package `holdfast` that a Python imports. python: the interpreter. file: its first file,
    "" without one. own: it is this project's. near: it lies in the folder of this shell."""

    python: str
    file: str = ""
    own: bool = False
    near: bool = False


class LocalFacts(Facts, frozen=True, kw_only=True):
    """A `holdfast up` on this machine. folder: its data folder. url: its address, "" while it does
    not run. listening: whether a program listens there. port: the port that an `up` would take;
    port_taken: a program listens there that is no `up` of this folder."""

    folder: str = ""
    url: str = ""
    listening: bool = False
    port: int = 0
    port_taken: bool = False


class DatabaseFinding(Facts, frozen=True, kw_only=True):
    """One thing about a database. level: "ok", "warning" or "problem"."""

    level: str
    sentence: str
    mend: str = ""


class AgentFacts(Facts, frozen=True, kw_only=True):
    """The agent of this machine. running: a guardian has locked the folder. registered: the host
    has a key. url: its controller; url_error: why that cannot be reached, "" where it answers."""

    folder: str
    running: bool
    registered: bool
    url: str = ""
    url_error: str = ""
