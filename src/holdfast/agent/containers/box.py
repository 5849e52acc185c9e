"""Make the options of `create` from a launch order. Pure, except that it checks whether a working
folder exists.

BOX-5  The beat socket and the job's work folder have the same paths inside as outside, so that
       every path in a variable that Holdfast sets is right on both sides.
BOX-6  The host's network and IPC namespaces are shared: the ranks of a gang find each other by the
       host's address, and NCCL's shared memory (`/dev/shm`) works between ranks, at the host's
       size. Processes have their own namespace, so none of them outlives the first one.
- The user inside is the agent's, even if the image names another: it owns the work
  folder and the beat socket, and its processes can be seen, measured and ended from outside.
"""

import os
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.agent.containers.plan import HOST_LABEL, PID_FILE, TASK_LABEL
from holdfast.agent.containers.runtimes import Runtime, Traits
from holdfast.core.gpus import Gpu
from holdfast.errors import ValidationError
from holdfast.wire.agent import LaunchOrder

# Variables that would change the behaviour of a runtime's client.
_CLIENT_WORDS = """
PATH HOME USER SHELL TMPDIR TMP NOTIFY_SOCKET LISTEN_FDS LISTEN_PID SSL_CERT_FILE SSL_CERT_DIR
GNUPGHOME GODEBUG GOGC GOMAXPROCS GOMEMLIMIT GOTRACEBACK GOCOVERDIR"""
_CLIENT_NAMES = frozenset(_CLIENT_WORDS.split())
_PREFIX_WORDS = "LD_ XDG_ CONTAINER DOCKER_ PODMAN_ BUILDAH_ STORAGE_ REGISTRY_ DBUS_ HOLDFAST_ _"
_CLIENT_PREFIXES = tuple(_PREFIX_WORDS.split())
# Folders of the image itself, over which no working folder of the host is mounted.
_SYSTEM_WORDS = "/bin /boot /dev /etc /lib /lib32 /lib64 /proc /run /sbin /sys /usr /var"
_SYSTEM_FOLDERS = tuple(_SYSTEM_WORDS.split())
_SHALLOW = ("/", "/home", "/mnt", "/media", "/opt", "/root", "/srv", "/tmp")


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `create` for one container. variables, file_variables: the two parts of its
    environment (`Plan`)."""

    options: list[str]
    command: list[str]
    variables: dict[str, str]
    file_variables: dict[str, str]


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """The host around a container.

    mark: the host's mark. task_folder, work_folder, beat_socket: paths on the host. gpus: all
    devices of the host. extra: the operator's own options of `create`.
    """

    mark: str
    task_folder: str
    work_folder: str
    beat_socket: str
    gpus: list[Gpu] = []
    extra: list[str] = []


def make_box(
    order: LaunchOrder,
    runtime: Runtime,
    traits: Traits,
    environment: Mapping[str, str],
    around: Surroundings,
) -> Box:
    """Return the container for an order. environment: the task's variables, without inherited ones.
    Raises ValidationError for options that this runtime does not offer."""
    devices, own = _make_devices(order, runtime, traits, around.gpus)
    environment = {**environment, **own}
    variables, file_variables = _split_environment(environment)
    options = [
        "--label", f"{HOST_LABEL}={around.mark}", "--label", f"{TASK_LABEL}={order.key}", "--network=host",
        f"--shm-size={traits.shm_bytes}" if traits.shm_bytes else "--ipc=host",
        "--log-driver=none", "--no-healthcheck", f"--user={traits.uid}:{traits.gid}",
    ]  # fmt: skip
    if runtime.kind == "podman":
        options.append(f"--pidfile={around.task_folder}/{PID_FILE}")
        if traits.uid:
            options.append("--userns=keep-id")
    if traits.init:
        options.append("--init")
        if runtime.kind == "podman":
            options.append(f"--init-path={traits.init}")
    if traits.selinux:
        options.append("--security-opt=label=disable")  # a user's folder is not relabelled
    if order.memory_bytes and traits.memory_limits:
        options += [f"--memory={order.memory_bytes}", f"--memory-swap={order.memory_bytes}"]
    options += [f"--ulimit={name}={limit}:{limit}" for name, limit in sorted(traits.limits.items())]
    options += [*devices, *_write_mounts(runtime, _make_mounts(order, environment, around))]
    cwd = order.cwd or (around.work_folder if order.code is not None else None)
    if cwd is not None:
        options.append(f"--workdir={cwd}")
    if order.shell is not None:
        options.append("--entrypoint=/bin/sh")
    if order.stdin:
        options.append("--interactive")
    for name in sorted(variables):
        options += ["--env", name]
    command = ["-c", order.shell] if order.shell is not None else list(order.argv)
    return Box(
        options=[*options, *around.extra],
        command=command,
        variables=variables,
        file_variables=file_variables,
    )


def _split_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    by_name: dict[str, str] = {}
    by_file: dict[str, str] = {}
    for name, value in environment.items():
        if name not in _CLIENT_NAMES and not name.startswith(_CLIENT_PREFIXES):
            by_name[name] = value
        elif "\n" in value or "\r" in value:
            raise ValidationError(
                f"{name} has a line break in it, and variables of that name reach a container "
                "only as one line",
                field=f"env.{name}",
            )
        else:
            by_file[name] = value
    return by_name, by_file


def _make_mounts(
    order: LaunchOrder, environment: Mapping[str, str], around: Surroundings
) -> list[tuple[str, str, str]]:
    """Return mounts as (path outside, path inside, "ro" or "rw"). A volume of the user's
    replaces a mount of Holdfast's at the same path."""
    mounts = {
        around.work_folder: "rw",
        around.beat_socket: "rw",
        f"{around.task_folder}/checkpoint-out": "rw",
    }
    if order.checkpoint is not None:
        mounts[f"{around.task_folder}/checkpoint-in"] = "ro"
    if order.world_size > 1 and "HOLDFAST_PEERS_FILE" in environment:
        mounts[environment["HOLDFAST_PEERS_FILE"]] = "ro"
    if "HOLDFAST_TOKEN_FILE" in environment and around.task_folder:
        mounts[environment["HOLDFAST_TOKEN_FILE"]] = "ro"
    if order.cwd is not None and is_worth_mounting(order.cwd) and os.path.isdir(order.cwd):
        mounts[os.path.normpath(order.cwd)] = "rw"
    wanted = [volume.split(":") for volume in order.volumes]
    for parts in wanted:
        mounts.pop(os.path.normpath(parts[1]), None)
    found = [(path, path, mode) for path, mode in mounts.items()]
    return found + [(parts[0], parts[1], parts[2] if len(parts) > 2 else "rw") for parts in wanted]


def _write_mounts(runtime: Runtime, mounts: Sequence[tuple[str, str, str]]) -> list[str]:
    """Return the options for mounts. For docker they are `--mount`, because its `--volume` makes
    missing folders, as root."""
    if runtime.kind == "docker":
        return [f"--mount={_write_mount(*mount)}" for mount in mounts]
    for outside, inside, _ in mounts:
        if ":" in outside + inside:
            raise ValidationError(
                f"the folder {outside!r} cannot be mounted: podman reads ':' as its own",
                field="cwd",
            )
    words = (("--volume", f"{outside}:{inside}:{mode}") for outside, inside, mode in mounts)
    return [word for pair in words for word in pair]


def _write_mount(outside: str, inside: str, mode: str) -> str:
    """Return the value of `--mount`: one line of comma-separated fields."""
    fields = ["type=bind", f"source={outside}", f"target={inside}"]
    fields += ["readonly"] if mode == "ro" else []
    return ",".join(
        '"' + field.replace('"', '""') + '"' if set(field) & set(',"\r\n') else field
        for field in fields
    )


def is_worth_mounting(path: str) -> bool:
    """Return True if a working folder may be mounted over the image's own folder of that path."""
    path = os.path.normpath(path)
    tops = (f"{top}/" for top in _SYSTEM_FOLDERS)
    return path not in _SHALLOW and not f"{path}/".startswith(tuple(tops))


def _make_devices(
    order: LaunchOrder, runtime: Runtime, traits: Traits, gpus: Sequence[Gpu]
) -> tuple[list[str], dict[str, str]]:
    """Return the options for the task's devices, and the variables that name the devices inside."""
    mine = [gpu for gpu in gpus if gpu.index in order.gpus]
    vendors = {gpu.vendor for gpu in mine}
    if not mine:
        # NVIDIA's images ask for every device if NVIDIA's runtime is docker's default.
        return [], {"NVIDIA_VISIBLE_DEVICES": "void"}
    if "amd" in vendors or ("nvidia" not in vendors and traits.amd):
        groups = ["--group-add=keep-groups"] if runtime.kind == "podman" and traits.uid else []
        return ["--device=/dev/kfd", "--device=/dev/dri", *groups], {}
    if "nvidia" not in vendors and not traits.cdi:
        return [], {}  # the operator declared them, and their kind is unknown
    # Inside only these devices exist, counted from 0 in the host's order, which need not be the
    # order of the ranks.
    seen = order.visible_gpus or order.gpus
    inside = ",".join(str(sorted(seen).index(index)) for index in seen)
    own = {"CUDA_VISIBLE_DEVICES": inside, "HIP_VISIBLE_DEVICES": inside}
    names = {gpu.index: gpu.word or str(gpu.index) for gpu in mine}
    devices = [names.get(index, str(index)) for index in sorted(seen)]
    if runtime.kind == "docker":
        return [f'--gpus="device={",".join(devices)}"'], own
    if not traits.cdi:
        raise ValidationError(
            "podman finds NVIDIA devices by a CDI description, and this host has none; make one "
            "with `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`",
            field="gpus",
        )
    return [f"--device=nvidia.com/gpu={device}" for device in devices], own
