"""Make the environment of a task: the agent's own, cleaned; the user's variables; the secrets; then
Holdfast's variables.

ENV-1  Of the agent's own environment a task gets what is named here: where programs, libraries and
       certificates are, how container engines are reached, the language, how libraries for GPUs,
       networks and threads are tuned, and what the operator names (`agent --pass-env`).
       Everything else stays with the agent, because it was started in a shell or by a service that
       may hold passwords of databases and keys of clouds. PATH, HOME, USER, LANG, SHELL and TMPDIR
       are completed where they are missing.
ENV-2  The user cannot override Holdfast's variables, except `PYTHONUNBUFFERED` and
       `OMP_NUM_THREADS`.
ENV-3  A task without GPUs on a host that has some sees none of them: an empty device list, never an
       absent one.
ENV-4  Ranks of a gang with one GPU each see the GPUs of all its ranks on their host, as under
       torchrun, so that a script that uses device LOCAL_RANK uses its own.
ENV-5  `holdfast` inside a task finds the controller by HOLDFAST_URL, and the task's own token in a
       file of its folder. A task whose user names a controller or a token gets neither.
"""

import base64
import contextlib
import fnmatch
import json
import os
import pwd
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from holdfast.agent.config import AgentConfig
from holdfast.agent.orders.peers import Peers
from holdfast.process.files import make_private_folder
from holdfast.wire.agent import LaunchOrder

_PASSED_WORDS = """
PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TERM COLORTERM NO_COLOR TMPDIR TMP TEMP EDITOR PAGER
LD_LIBRARY_PATH LD_PRELOAD LIBRARY_PATH CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH PKG_CONFIG_PATH
MANPATH INFOPATH VIRTUAL_ENV CC CXX CFLAGS CXXFLAGS LDFLAGS MODULEPATH MODULESHOME LOADEDMODULES
_LMFILES_ SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE HF_HOME HF_HUB_CACHE
REGISTRY_AUTH_FILE HF_HUB_OFFLINE HF_DATASETS_CACHE TRANSFORMERS_CACHE KERAS_HOME WANDB_MODE WANDB_DIR
"""
_PASSED = frozenset(_PASSED_WORDS.split())
_PREFIX_WORDS = """
LC_ XDG_ PYTHON CONDA_ MAMBA_ LMOD_ CUDA_ NVIDIA_ NCCL_ RCCL_ HIP_ HSA_ ROCM_ ROCR_ MIOPEN_ AMD_ OMP_
KMP_ MKL_ OPENBLAS_ GOTO_ NUMEXPR_ VECLIB_ GLOO_ UCX_ FI_ OMPI_ PMIX_ TORCH PYTORCH_ TRITON_ TF_ XLA_
JAX_ TPU_ MALLOC_ SLURM_ KUBERNETES_ DOCKER_ CONTAINERS_ CONTAINER_ PODMAN_
"""
_PASSED_PREFIXES = tuple(_PREFIX_WORDS.split())
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_SECRET = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|(^|_)KEY(_|$)|AUTH", re.IGNORECASE)
# Variables by which a program finds its device or rank: Holdfast sets the task's own values.
_TAKEN_WORDS = """
CUDA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES TORCHELASTIC_RESTART_COUNT
TORCHELASTIC_RUN_ID TORCHELASTIC_USE_AGENT_STORE"""
_TAKEN = frozenset(_TAKEN_WORDS.split())
# Linux refuses to execute a program with a variable over 128 KiB, its name included. 98 000 bytes
# are 130 668 in base64. Longer checkpoints, and peers from about 1600 ranks on, are in their files
# alone.
MAX_INLINE_BYTES = 98_000
MAX_PEERS_BYTES = 98_000
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def is_passed(name: str, value: str, named: Sequence[str] = ()) -> bool:
    """Return True if tasks get this variable of the agent's. named: the operator's patterns
    (`--pass-env`)."""
    if name.startswith("HOLDFAST_") or name in _TAKEN:
        return False
    if name in _PASSED or any(fnmatch.fnmatchcase(name, pattern) for pattern in named):
        return True
    if name.lower() in _PROXIES:
        return "@" not in value  # it may hold a password
    return name.startswith(_PASSED_PREFIXES) and not _SECRET.search(name)


def inherit_environment(environ: Mapping[str, str], named: Sequence[str] = ()) -> dict[str, str]:
    """Return the part of the agent's environment that tasks get (ENV-1)."""
    kept = {k: v for k, v in environ.items() if is_passed(k, v, named)}
    try:
        person = pwd.getpwuid(os.getuid())
    except KeyError:  # a container may run as a number without a name
        person = None
    defaults = {
        "PATH": _DEFAULT_PATH,
        "HOME": person.pw_dir if person else "/",
        "USER": person.pw_name if person else str(os.getuid()),
        "LANG": "C.UTF-8",
        "SHELL": (person.pw_shell if person else "") or "/bin/sh",
        "TMPDIR": "/tmp",
    }
    return {**defaults, **kept}


def make_inherited(environ: Mapping[str, str], config: AgentConfig) -> dict[str, str]:
    """Return the variables that every task of this host inherits."""
    return add_own_program(inherit_environment(environ, config.pass_env), config.state_path)


def add_own_program(inherited: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables with the agent's own `holdfast` findable, last in PATH, if PATH has no
    `holdfast` yet. PATH names a folder with a link to the program, below `folder`, because the
    program's own folder also holds a Python that tasks must not use."""
    own, link = Path(sys.executable).with_name("holdfast"), folder / "bin" / "holdfast"
    if shutil.which("holdfast", path=inherited["PATH"]) or not own.exists():
        return dict(inherited)
    with contextlib.suppress(OSError):  # on a full disk tasks run without `holdfast` in their PATH
        make_private_folder(link.parent)
        link.unlink(missing_ok=True)
        link.symlink_to(own)
    return {**inherited, "PATH": f"{inherited['PATH']}:{link.parent}"}


def make_task_environment(
    order: LaunchOrder,
    inherited: Mapping[str, str],
    *,
    host_id: str,
    host_mark: str,
    beat_socket: str,
    work_folder: str,
    host_gpus: int,
    host_words: Mapping[str, str] = MappingProxyType({}),
    device_words: Mapping[int, str] = MappingProxyType({}),
    peers: Peers | None = None,
    checkpoint_out: str = "",
    checkpoint_in: Path | None = None,
    controller: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return the whole environment of a task.

    Ranks and rendezvous are named as torchrun names them, so that a script that runs under it runs
    here unchanged. HOLDFAST_HOST is the mark by which the guardian finds the task's processes, not
    the host's id (HOLDFAST_HOST_ID). HOLDFAST_GRACE is the seconds between TERM and KILL.
    host_words: the variables that `describe_host` returns. device_words: device index → name, for
    devices that the driver knows by a name (`Gpu.word`).
    """
    key = order.key
    defaults = {"PYTHONUNBUFFERED": "1"}
    if order.local_world_size > 1 and "OMP_NUM_THREADS" not in inherited:
        defaults["OMP_NUM_THREADS"] = "1"  # as torchrun: ranks on every core slow one another
    given = {**order.env, **order.secrets}
    if not given.keys() & {"HOLDFAST_URL", "HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE"}:
        defaults |= controller  # ENV-5
    env = {**defaults, **given}
    env |= {
        "HOLDFAST_TASK": str(key),
        "HOLDFAST_JOB_ID": key.job_id,
        "HOLDFAST_JOB_NAME": order.name,
        "HOLDFAST_QUEUE": order.queue,
        "HOLDFAST_PROJECT": order.project,
        "HOLDFAST_RANK": str(key.rank),
        "HOLDFAST_EPOCH": str(key.epoch),
        "HOLDFAST_ATTEMPT": str(order.attempt),
        "HOLDFAST_HOST": host_mark,
        "HOLDFAST_HOST_ID": host_id,
        "HOLDFAST_GRACE": f"{order.watch.grace_seconds:g}",
        "HOLDFAST_BEAT_SOCKET": beat_socket,
        "HOLDFAST_WORK": work_folder,
    }
    env |= {**_name_rank(order), **host_words, **_name_peers(peers)}
    env |= _name_checkpoint(order, checkpoint_out, checkpoint_in)
    env |= _name_devices(order, host_gpus, device_words)
    # Inherited variables need no check, because they come from an environment.
    own = {k: v for k, v in env.items() if k and "=" not in k and "\0" not in k + v}
    return {**inherited, **own}


def _name_devices(order: LaunchOrder, host_gpus: int, words: Mapping[int, str]) -> dict[str, str]:
    """Return the environment variables that limit the task to its devices (ENV-3, ENV-4)."""
    if not order.gpus and not host_gpus:
        return {}
    devices = ",".join(words.get(i, str(i)) for i in order.visible_gpus or order.gpus)
    found = {"CUDA_VISIBLE_DEVICES": devices, "HIP_VISIBLE_DEVICES": devices}
    # CUDA has to number the devices in NVML's order, because `gpus` are numbered so.
    return found | ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} if order.gpus else {})


def describe_host(name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that tell a task its host's name and labels (as JSON)."""
    return {"HOLDFAST_HOST_NAME": name, "HOLDFAST_HOST_LABELS": json.dumps(dict(labels))}


def describe_controller(url: str, ca_file: str | None) -> dict[str, str]:
    """Return the environment variables that tell a task the controller's address, and the file of
    its certificate authority if this host was given one."""
    found = {"HOLDFAST_URL": url}
    return found | ({"HOLDFAST_CA_FILE": ca_file} if ca_file else {})


def _name_rank(order: LaunchOrder) -> dict[str, str]:
    """Return the environment variables that tell a task its rank and the rendezvous of its gang,
    under torchrun's names."""
    env = {
        "RANK": str(order.key.rank),
        "WORLD_SIZE": str(order.world_size),
        "LOCAL_RANK": str(order.local_rank),
        "LOCAL_WORLD_SIZE": str(order.local_world_size),
        "GROUP_RANK": str(order.group_rank),
        "GROUP_WORLD_SIZE": str(order.group_world_size),
        "ROLE_RANK": str(order.key.rank),
        "ROLE_WORLD_SIZE": str(order.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": order.master_addr,
        "TORCHELASTIC_RUN_ID": order.key.job_id,
        "TORCHELASTIC_RESTART_COUNT": str(order.attempt - 1),
    }
    if order.master_port:
        env["MASTER_PORT"] = str(order.master_port)
    return env


def _name_peers(peers: Peers | None) -> dict[str, str]:
    """Return the environment variables that name the other ranks of the gang: the path of the file
    that lists them, and its text as well if it is short."""
    if peers is None:
        return {}
    found = {"HOLDFAST_PEERS_FILE": peers.path}
    if len(peers.text.encode()) <= MAX_PEERS_BYTES:
        found["HOLDFAST_PEERS"] = peers.text
    return found


def _name_checkpoint(order: LaunchOrder, folder: str, path: Path | None) -> dict[str, str]:
    """Return the environment variables that name the folder to which the task saves, and the
    checkpoint from which it starts: the path of the file, and its bytes if they are few. Raises
    OSError."""
    found = {"HOLDFAST_CHECKPOINT_OUT": folder} if folder else {}
    if path is None or order.checkpoint is None:
        return found
    found["HOLDFAST_CHECKPOINT"] = str(path)
    if order.checkpoint.step is not None:
        found["HOLDFAST_CHECKPOINT_STEP"] = str(order.checkpoint.step)
    if order.checkpoint.size <= min(order.inline_bytes, MAX_INLINE_BYTES):
        found["CHECKPOINT_DATA"] = base64.b64encode(path.read_bytes()).decode()
    return found


def make_command(order: LaunchOrder) -> list[str]:
    """Return the argv to execute, or the shell with the command line that the user gave."""
    return ["/bin/sh", "-c", order.shell] if order.shell is not None else list(order.argv)
