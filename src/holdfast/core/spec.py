"""JobSpec, the job that a user submits: one struct, validated once, the same from flags, a file,
the SDK or REST.

A field left `None` means "as the queue, the cluster, the environment or the default says"
(`core.settings.resolve`). Units: seconds, bytes, whole GPUs, CPU slots.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.bundles.code import CodeRef, check_code
from holdfast.core.data.named import MAX_FOLDERS, MAX_WORD_CHARS, check_folders, list_mount_labels
from holdfast.core.data.outputs import MAX_OUTPUTS, check_outputs
from holdfast.core.dependencies import AFTER_PATTERN, MAX_PARENTS, parse_all
from holdfast.core.ids import ID_PATTERN
from holdfast.core.logs.regex import MAX_PATTERN_CHARS, compile_for_python
from holdfast.core.retry import RetryFields, check_fields
from holdfast.errors import ValidationError

MAX_TASKS = 65_536
MAX_ENV_BYTES = 128 * 1024  # the kernel's limit for one string is 128 KiB (MAX_ARG_STRLEN)
MAX_ARGV_BYTES = 1536 * 1024
"""Most bytes of a command's words, counted as the kernel does, with nine bytes more for each word.
With the environment they must fit into 2 MiB, a quarter of the usual stack."""
MAX_ARGV_WORDS = MAX_ARGV_BYTES // 10
MAX_LABELS = 64
LEAST_MEMORY_BYTES = 1 << 20
MAX_MIN_RUN_SECONDS = 30 * 86_400.0
MAX_NOTICE_SECONDS = 3600.0
"""A limit below this is a number whose unit was forgotten: no process starts in it."""

# `$` alone also matches before a last newline; `$(?!\n)` does not, in Python and JSON Schema.
Name = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$(?!\n)")
]
ShortText = Annotated[str, Meta(max_length=256)]
Seconds = Annotated[float, Meta(gt=0, le=366 * 86_400)]
EnvName = Annotated[
    str, Meta(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)")
]
EnvValue = Annotated[str, Meta(max_length=128 * 1024)]
Title = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
Volume = Annotated[str, Meta(min_length=3, max_length=4096)]
FolderWord = Annotated[str, Meta(min_length=1, max_length=MAX_WORD_CHARS)]
# A reference as registries write them: never a word that a runtime could take for an option.
IMAGE = r"^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$(?!\n)"

Off = Literal["off"]
"""The word that switches a limit off where `None` means "inherit"."""


MAX_STDIN_BYTES = 64 << 20


class JobSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A job as its user wrote it.

    argv: the program and its arguments, run without a shell; or shell: a line for `/bin/sh -c`.
    env: variables added to the agent's clean environment. secrets: variables that are stored apart
    and never shown. stdin: the SHA-256 of a value (`PUT /v1/values/…`) that every task of every
    attempt reads as its standard input; without one the input is empty.
    code: the folder, or the commit, that is laid into the work folder before each attempt. setup: a
    line for `/bin/sh` that makes the Python environment, once per host for all jobs of the project
    with this line, this `python` and these `setup_files`, if they find the same in all files that
    it read. python: a version, as 3.12. setup_seconds: how long that may take.
    tasks: number of ranks that run together; more than one is a gang.
    gpus, cpus, memory_bytes: needs of each task. A task with GPUs needs devices, another needs
    `cpus` slots (default 1).
    time_limit_seconds … on_corruption: the settings of these names for this job; None
    inherits, "off" switches a limit off.
    expected_seconds: how long an attempt is expected to take. Admission plans with it: room is held
    back for other jobs until then, and a short job may use such room. No job is stopped for it
    (`core.placement.holds`).
    retry: fields of the retry policy that this job sets. interactive: it runs once and is never
    retried by itself. terminal: its input, output and errors are a terminal, which `holdfast attach`
    shows; such a job is interactive. attended: a person sits at it, so it is interactive, too, and
    ends where that person leaves it (`idle_timeout_seconds`); a terminal implies that.
    image: run each task in a container of this image, by podman or docker, whichever the host has,
    or by `runtime`. pull: when the image is fetched. volumes: "host path:path inside[:ro]".
    caches, mounts: folders that stay on a host for the jobs of one project, and folders that an
    agent's configuration lists: NAME, or in a container NAME:/path (`core.data.named`).
    outputs: files and folders below the job's folder that are kept after each attempt.
    placement: how a gang is placed: on as few hosts as possible (pack), or first one task on each
    host (spread). host_labels: labels that its hosts must have, with their values; a value that
    begins with ! is one that they must not have.
    supervised: rank 0 runs a policy script and every rank a host manager; a lost rank other than 0
    is replaced alone (`core.endings.replace`). `holdfast supervise` makes such a job.
    on_partial: where a failure stops a gang and some tasks were done: fail, or restart them all.
    fail_on: a regular expression; a task that exits with 0 fails where a line of its output matches.
    fresh_workdir: each attempt gets an empty folder of its own; otherwise attempts on one host
    share the job's folder. Without `cwd` a task starts in that folder.
    preemptible: a job of higher priority may take its place; it is queued again at no charge.
    preempt_min_run_seconds: how long an attempt runs at least before another job may take its
    place. notice_seconds: how long it has then to save, before it is killed.
    start_at: Unix seconds; the job waits until then.
    parent: the id of the job whose token submitted it; only Holdfast writes it. detached: it is not
    cancelled with its parent.
    executor: the family of calls that it runs (`core.calls`). Only Holdfast submits such jobs; they
    have no program of their own.
    after: ids of jobs that must end first, each with :ok (the default), :any or :failed behind it
    (`core.dependencies`).
    notify: what people are told of it: TARGET or TARGET:KIND,… (`core.webhooks.notices`).
    idempotency_key: another submission with this key in its project returns the first job.
    """

    argv: Annotated[tuple[EnvValue, ...], Meta(max_length=MAX_ARGV_WORDS)] = ()
    shell: EnvValue | None = None
    name: Title | None = None
    queue: Name | None = None
    project: Name = "default"
    priority: Annotated[int, Meta(ge=0, le=100)] = 50
    tasks: Annotated[int, Meta(ge=1, le=MAX_TASKS)] = 1
    gpus: Annotated[int, Meta(ge=0, le=1024)] = 0
    cpus: Annotated[int, Meta(ge=0, le=4096)] | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=1 << 50)] = 0
    labels: Annotated[dict[Name, ShortText], Meta(max_length=MAX_LABELS)] = {}
    env: Annotated[dict[EnvName, EnvValue], Meta(max_length=1024)] = {}
    secrets: Annotated[dict[EnvName, EnvValue], Meta(max_length=256)] = {}
    stdin: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")] | None = None
    code: CodeRef | None = None
    setup: EnvValue | None = None
    setup_files: Annotated[tuple[ShortText, ...], Meta(max_length=32)] = ()
    python: (
        Annotated[str, Meta(max_length=32, pattern=r"^[0-9]+([.][0-9]+){0,2}$(?!\n)")] | None
    ) = None
    cwd: Annotated[str, Meta(min_length=1, max_length=4096, pattern=r"^/[^\x00]*$")] | None = None
    fresh_workdir: bool = False
    fail_on: Annotated[str, Meta(min_length=1, max_length=MAX_PATTERN_CHARS)] | None = None
    time_limit_seconds: Seconds | Off | None = None
    expected_seconds: Seconds | None = None
    stall_timeout_seconds: Seconds | Off | None = None
    silence_limit_seconds: Seconds | Off | None = None
    first_beat_timeout_seconds: Seconds | Off | None = None
    grace_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    stop_tells: Literal["main", "tree"] | None = None
    lease_ttl_seconds: Annotated[float, Meta(ge=15, le=3600)] | None = None
    watchdog_cap: Annotated[int, Meta(ge=0, le=1000)] | None = None
    no_progress_limit: Annotated[int, Meta(ge=1, le=1000)] | Off | None = None
    budget_reset_seconds: Annotated[float, Meta(ge=1, le=366 * 86_400)] | Off | None = None
    retry: RetryFields | None = None
    interactive: bool = False
    terminal: bool = False
    attended: bool = False
    idle_timeout_seconds: Seconds | Off | None = None
    image: Annotated[str, Meta(min_length=1, max_length=1024, pattern=IMAGE)] | None = None
    runtime: Literal["podman", "docker"] | None = None
    pull: Literal["missing", "always", "never"] = "missing"
    volumes: Annotated[tuple[Volume, ...], Meta(max_length=64)] = ()
    image_pull_seconds: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    setup_seconds: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    caches: Annotated[tuple[FolderWord, ...], Meta(max_length=MAX_FOLDERS)] = ()
    mounts: Annotated[tuple[FolderWord, ...], Meta(max_length=MAX_FOLDERS)] = ()
    outputs: Annotated[tuple[FolderWord, ...], Meta(max_length=MAX_OUTPUTS)] = ()
    placement: Literal["pack", "spread"] = "pack"
    host_labels: Annotated[dict[Name, ShortText], Meta(max_length=MAX_LABELS)] = {}
    supervised: bool = False
    on_partial: Literal["fail", "restart"] = "fail"
    preemptible: bool = False
    preempt_min_run_seconds: Annotated[float, Meta(ge=0, le=MAX_MIN_RUN_SECONDS)] | None = None
    notice_seconds: Annotated[float, Meta(ge=0, le=MAX_NOTICE_SECONDS)] | None = None
    start_timeout_seconds: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    recovery_timeout_seconds: Annotated[float, Meta(ge=1, le=86_400)] | None = None
    on_straggler: Literal["ignore", "tell", "blame", "replace", "restart"] | None = None
    straggler_seconds: Annotated[float, Meta(ge=0, le=86_400)] | None = None
    on_corruption: Literal["ignore", "tell", "restart"] | None = None
    on_standstill: Literal["ignore", "tell", "stop"] | None = None
    standstill_seconds: Seconds | Off | None = None
    start_at: Annotated[float, Meta(ge=0, le=32_503_680_000)] | None = None
    parent: Annotated[str, Meta(max_length=20)] = ""
    detached: bool = False
    executor: Annotated[str, Meta(max_length=64)] = ""
    after: Annotated[
        tuple[Annotated[str, Meta(max_length=80, pattern=AFTER_PATTERN)], ...],
        Meta(max_length=MAX_PARENTS),
    ] = ()
    notify: Annotated[tuple[ShortText, ...], Meta(max_length=16)] = ()
    idempotency_key: (
        Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[\x21-\x7e]+$(?!\n)")] | None
    ) = None

    @property
    def cpu_slots(self) -> int:
        """Return the CPU slots that a task needs: `cpus` where given, else one, or none with
        GPUs."""
        return self.cpus if self.cpus is not None else (0 if self.gpus else 1)

    @property
    def makes_environment(self) -> bool:
        """Return whether a Python environment is made before the job's program starts."""
        return self.setup is not None or self.python is not None

    @property
    def title(self) -> str:
        """Return the name to show: the user's, else the program's, or an interpreter's script's."""
        if self.name:
            return self.name
        program = find_script(self.argv) if self.argv else self.image or "?"
        text = self.shell or program.rsplit("/", 1)[-1]
        return re.sub(r"[\x00-\x1f\x7f]+", " ", text).strip()[:60] or "?"

    def without_secrets(self) -> JobSpec:
        """Return the spec as it may be stored and shown: with names of secrets, without values."""
        return msgspec.structs.replace(self, secrets=dict.fromkeys(self.secrets, ""))


_INTERPRETER = re.compile(r"(?:.*/)?(?:python[0-9.]*|bash|sh)")
_WITH_VALUE = ("-W", "-X", "-o")


def find_script(argv: Sequence[str]) -> str:
    """Return the script or module in an interpreter's command, else the program itself."""
    words = iter(argv[1:] if _INTERPRETER.fullmatch(argv[0]) else ())
    for word in words:
        if word == "-m":
            return next(words, argv[0])
        if word in ("-", "--") or re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            break
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return argv[0]


def check_spec(spec: JobSpec) -> JobSpec:
    """Check the rules that types cannot express, and return the spec, with the labels that its
    mounts need (MOUNT-1).

    Raises:
        ValidationError: names the field and what to do.
    """
    ours = "executors are submitted by Holdfast itself, when calls of functions wait; submit calls"
    _require(not spec.executor, "executor", ours)
    parent = (
        "a job's parent is written by Holdfast, for a job that another one submits; leave it out"
    )
    _require(not spec.parent, "parent", parent)
    _require(
        spec.image is not None or bool(spec.argv) != (spec.shell is not None),
        "argv",
        "a job needs exactly one of `argv` (a program and its arguments) and `shell` (a command "
        "line)",
    )
    taken = (
        "a name like a job's id (20 digits and letters) or @last could not be told from one; choose "
        "another"
    )
    _require(not (spec.name == "@last" or ID_PATTERN.fullmatch(spec.name or "")), "name", taken)
    if spec.retry is not None:
        check_fields(spec.retry)
        never = (
            "a job that runs once (--once, interactive) is never run again by itself; drop that or "
            "max_retries"
        )
        _require(not (spec.interactive and spec.retry.max_retries), "retry", never)
    _check_terminal(spec)
    limit, expected = spec.time_limit_seconds, spec.expected_seconds
    longer = (
        f"it is expected to take {expected or 0:g} s, and its own time limit of {limit} s would stop it "
        "before; raise the limit, or expect less"
    )
    fits = expected is None or limit is None or limit == "off" or expected <= limit
    _require(fits, "expected_seconds", longer)
    check_memory(spec.memory_bytes)
    parse_all(spec.after)
    if spec.code is not None:
        check_code(spec.code)
        beside = "a job with code starts in its work folder, where the code is; leave cwd out"
        _require(spec.cwd is None, "cwd", beside)
    _check_setup(spec)
    _check_container(spec)
    check_folders("cache", spec.caches, boxed=spec.image is not None)
    check_folders("mount", spec.mounts, boxed=spec.image is not None)
    check_outputs(spec.outputs)
    bare = "host managers run on the hosts themselves; let the policy start the containers"
    _require(not spec.supervised or spec.image is None, "image", bare)
    _check_command(spec)
    _check_environment(spec)
    _check_fail_on(spec.fail_on)
    if spec.mounts:
        labels = {**spec.host_labels, **list_mount_labels(spec.mounts)}
        return msgspec.structs.replace(spec, host_labels=labels)
    return spec


def _check_setup(spec: JobSpec) -> None:
    for field in ("setup_files", "setup_seconds"):
        belongs = spec.makes_environment or not getattr(spec, field)
        _require(belongs, field, f"{field} goes with setup or python")
    if not spec.makes_environment:
        return
    own = (
        "in a container the environment is made before the job's own command, and not before its "
        "image's: give the command"
    )
    _require(spec.image is None or bool(spec.argv) or spec.shell is not None, "argv", own)
    _require(spec.setup is None or bool(spec.setup.strip()), "setup", "the setup line is empty")
    for pattern in spec.setup_files:
        parts = pattern.split("/")
        inside = not pattern.startswith("/") and ".." not in parts and {*parts} - {"", "."}
        wrong = f"{pattern!r} is no pattern below the job's folder, as requirements/*.txt is one"
        _require(bool(inside), "setup_files", wrong)
        whole = all(part == "**" or "**" not in part for part in parts) or len(parts) == 1
        wrong = f"{pattern!r} has ** beside other letters: ** stands alone between slashes, as in **/*.txt"
        _require(whole, "setup_files", wrong)


def _check_fail_on(pattern: str | None) -> None:
    try:
        if pattern is not None:
            compile_for_python(pattern)
    except ValidationError as error:
        raise ValidationError(f"fail_on: {error.message}", field="fail_on") from None


def _check_terminal(spec: JobSpec) -> None:
    left = "an idle timeout is for a job at which a person sits: `run -it`, `notebook`"
    sits = spec.terminal or spec.attended
    _require(spec.idle_timeout_seconds is None or sits, "idle_timeout_seconds", left)
    once = "a job at which a person sits is never run again by itself: set interactive"
    _require(spec.interactive or not spec.attended, "interactive", once)
    if not spec.terminal:
        return
    again = "a job with a terminal is never run again by itself, because a person sat at it: set interactive"
    _require(spec.interactive, "interactive", again)
    _require(spec.tasks == 1, "tasks", "a terminal is for a job of one task")
    _require(spec.stdin is None, "stdin", "a job with a terminal reads keys; leave stdin out")
    inside = "a container has no terminal of its own; `holdfast shell JOB` opens one inside"
    _require(spec.image is None, "image", inside)


def check_memory(memory_bytes: int) -> None:
    """Raise ValidationError for a memory limit in which no process can start."""
    if 0 < memory_bytes < LEAST_MEMORY_BYTES:
        unit = "M" if memory_bytes >= 64 else "G"
        raise ValidationError(
            f"memory is {memory_bytes} bytes, in which no process can start; did you mean "
            f"{memory_bytes}{unit}?",
            field="memory_bytes",
        )


def _require(holds: bool, field: str, message: str) -> None:
    if not holds:
        raise ValidationError(message, field=field)


def _check_command(spec: JobSpec) -> None:
    program = not spec.argv or bool(spec.argv[0])
    _require(program, "argv", "the program's name, the first word of `argv`, is empty")
    line = spec.shell is None or bool(spec.shell.strip())
    _require(line, "shell", "the shell command line is empty")
    for word in spec.argv:
        _check_text("argv", word)
    _check_text("shell", spec.shell or "")
    large = (
        f"the command of {len(spec.argv)} words is over {MAX_ARGV_BYTES} bytes, more than a program can "
        "be started with: put the words in a file, or have the job's own shell expand a pattern "
        "(--shell 'prog *.txt')"
    )
    _require(sum(len(w.encode()) + 9 for w in spec.argv) <= MAX_ARGV_BYTES, "argv", large)


_RANKS = "leave it out, and ask for ranks with `tasks`"
_PORT = "leave it out; the address of a gang is rank 0's, and its port is picked free there"
_GPUS = "ask for devices with `gpus`, and choose among those in the program"
_NAMES = "give it another name, as SEED_RANK for one of your own"
SET_FOR_TASKS = {
    **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"), _RANKS),
    **dict.fromkeys(("GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"), _RANKS),
    **dict.fromkeys(("MASTER_ADDR", "MASTER_PORT"), _PORT),
    **dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"), _GPUS),
    **dict.fromkeys(("ROLE_NAME", "TORCHELASTIC_RUN_ID"), _NAMES),
    **dict.fromkeys(("TORCHELASTIC_RESTART_COUNT", "CHECKPOINT_DATA"), _NAMES),
}
"""Variables that Holdfast sets for every task, so that a submission must not → advice to the
user."""
TO_A_CONTROLLER = {"HOLDFAST_URL", "HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE", "HOLDFAST_CA_FILE"}
"""Variables by which a job reaches a controller with a token of its user's choice."""
_DEVICES = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "",
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
}
"""Values that a job without GPUs may set all the same, because they are the ones it gets."""


def _check_environment(spec: JobSpec) -> None:
    for place, values in (("env", spec.env), ("secrets", spec.secrets)):
        for name, value in values.items():
            _check_text(f"{place}.{name}", value)
    size = sum(len(k) + len(v.encode()) + 2 for k, v in {**spec.env, **spec.secrets}.items())
    large = f"env and secrets are {size} bytes together; the limit is {MAX_ENV_BYTES}"
    _require(size <= MAX_ENV_BYTES, "env", large)
    both = ", ".join(sorted(spec.env.keys() & spec.secrets.keys()))
    _require(not both, "secrets", f"{both} is both in env and in secrets")
    given = (spec.env.keys() | spec.secrets.keys()) - TO_A_CONTROLLER
    ours = sorted(name for name in given if name.startswith("HOLDFAST_"))
    names = ", ".join(ours)
    _require(not names, "env", f"{names}: names that start with HOLDFAST_ are set by Holdfast")
    for place, values in (("env", spec.env), ("secrets", spec.secrets)):
        for name in sorted(SET_FOR_TASKS.keys() & values.keys()):
            if name not in _DEVICES or values[name] != _DEVICES[name] or spec.gpus:
                what = SET_FOR_TASKS[name]
                text = f"{name} is set by Holdfast for each rank, so that this would be replaced: {what}"
                raise ValidationError(text, field=f"{place}.{name}")


def _check_text(field: str, text: str) -> None:
    _require("\x00" not in text, field, "a NUL character cannot be passed to a program")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(
            "half of a surrogate pair is not text that can be stored", field=field
        ) from None


def _check_container(spec: JobSpec) -> None:
    if spec.image is None:
        for field in ("runtime", "volumes", "image_pull_seconds"):
            if getattr(spec, field):
                raise ValidationError(f"{field} is for a job with an image", field=field)
        return
    if spec.argv and spec.shell is not None:
        raise ValidationError("a job takes `argv` or `shell`, not both", field="argv")
    for volume in spec.volumes:
        parts = volume.split(":")
        if len(parts) not in (2, 3) or not all(part.startswith("/") for part in parts[:2]):
            form = "/host/path:/path/inside, with :ro or :rw after it if need be"
            raise ValidationError(f"volume {volume!r} is not written {form}", field="volumes")
        if len(parts) == 3 and parts[2] not in ("ro", "rw"):
            wrong = f"volume {volume!r} ends in {parts[2]!r}; it may be ro or rw"
            raise ValidationError(wrong, field="volumes")
