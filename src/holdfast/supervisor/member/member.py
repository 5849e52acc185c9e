"""One rank of a job that `holdfast supervise` submitted: the settings that its agent gives it.

Every rank derives the keys of its attempt from the job's seed. The processes below it inherit
neither the seed nor the variables meant for the rank itself (its rank, and the rendezvous, which is
the supervisor's port).
"""

import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from holdfast.core.run_seed import SEED_VARIABLE
from holdfast.errors import ValidationError
from holdfast.supervisor.host.config import ManagerConfig
from holdfast.supervisor.line.keys import ManagerKey, RunKeys, derive_keys
from holdfast.supervisor.run_config import is_loopback

TERM_MARGIN_SECONDS = 2.0  # of the job's grace, for the manager to report how its processes ended
_PATIENCE_SECONDS = 1e9  # the script may load for hours before its Context(); JSON has no infinity
_FOR_THE_RANK = frozenset(
    (
        f"{SEED_VARIABLE} RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE "
        "ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME MASTER_ADDR MASTER_PORT TORCHELASTIC_RESTART_COUNT "
        "TORCHELASTIC_RUN_ID"
    ).split()
)
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class _Peer(msgspec.Struct, frozen=True):
    rank: int
    address: str


class MemberRank(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one attempt.

    hosts: the number of ranks. address, port: where rank 0's script listens. machine, own_address,
    labels: the name, address and labels of the rank's host, as Holdfast knows them. grace_seconds:
    the job's time between TERM and KILL.
    """

    rank: int
    hosts: int
    job_id: str
    attempt: int
    seed: bytes
    address: str
    port: int
    machine: str | None = None
    own_address: str | None = None
    labels: dict[str, str] = {}
    grace_seconds: float | None = None

    @property
    def url(self) -> str:
        """Return the URL that this rank's host manager dials. On rank 0's own machine that is
        loopback, because an advertised address may be reachable only from other machines."""
        where = self.address
        if self.rank == 0 and not is_loopback(where):
            where = "::1" if ":" in where else "127.0.0.1"
        return f"tcp://[{where}]:{self.port}" if ":" in where else f"tcp://{where}:{self.port}"

    @property
    def term_grace_seconds(self) -> float | None:
        """Return the time between TERM and KILL that processes get at a drain: most of the job's
        grace."""
        grace = self.grace_seconds
        return None if grace is None else max(grace - TERM_MARGIN_SECONDS, grace / 2)

    def make_keys(self) -> RunKeys:
        """Derive the keys of this attempt."""
        return derive_keys(self.seed, self.job_id, self.attempt)


def read_member(environ: Mapping[str, str]) -> MemberRank:
    """Read the agent's settings. Raises ValidationError in a process that is no rank of a
    supervised job."""
    grace = environ.get("HOLDFAST_GRACE")
    labels = environ.get("HOLDFAST_HOST_LABELS") or "{}"
    try:
        return MemberRank(
            rank=int(environ["RANK"]),
            hosts=int(environ["WORLD_SIZE"]),
            job_id=environ["HOLDFAST_JOB_ID"],
            attempt=int(environ["HOLDFAST_ATTEMPT"]),
            seed=bytes.fromhex(environ[SEED_VARIABLE]),
            address=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
            machine=environ.get("HOLDFAST_HOST_NAME") or None,
            own_address=_find_address(environ),
            labels=msgspec.convert(json.loads(labels), dict[str, str]),
            grace_seconds=float(grace) if grace else None,
        )
    except KeyError as error:
        raise ValidationError(
            f"{error.args[0]} is not set: this program runs only as a rank of a job that "
            "`holdfast supervise` submitted",
            field=str(error.args[0]),
        ) from None
    except (ValueError, OSError, msgspec.MsgspecError) as error:
        # Without the error's text, which may hold the seed.
        raise ValidationError(
            "the environment of this rank cannot be read; is its agent of another version?"
        ) from error


def make_manager(
    member: MemberRank, gpus: int, *, key: ManagerKey | None = None, log_file: str | None = None
) -> ManagerConfig:
    """Make the configuration of the host manager on this rank's machine."""
    return ManagerConfig(
        url=member.url,
        key=key,
        name=member.machine,
        address=member.own_address,
        labels=member.labels,
        gpus=gpus,
        patience_seconds=_PATIENCE_SECONDS,
        log_file=log_file,
        term_grace_seconds=member.term_grace_seconds,
    )


def _find_address(environ: Mapping[str, str]) -> str | None:
    """Find this rank's address as the other hosts reach it, which only its agent knows."""
    rank = int(environ["RANK"])
    if rank == 0:
        return environ["MASTER_ADDR"]
    text = environ.get("HOLDFAST_PEERS") or ""
    if not text and environ.get("HOLDFAST_PEERS_FILE"):
        text = Path(environ["HOLDFAST_PEERS_FILE"]).read_text()
    peers = msgspec.json.decode(text or "[]", type=list[_Peer])
    return next((peer.address for peer in peers if peer.rank == rank), None)


def clean_environment(environ: Mapping[str, str], gpus: int) -> dict[str, str]:
    """Make the environment of the script, host managers and processes. gpus: the number of
    GPUs of each rank.

    A rank with one device sees those of all ranks on its host, for scripts that choose device
    LOCAL_RANK; its host manager offers only its own.
    """
    kept = {name: value for name, value in environ.items() if name not in _FOR_THE_RANK}
    for name in _DEVICES:
        devices = kept.get(name, "").split(",")
        place = environ.get("LOCAL_RANK", "")
        if gpus == 1 and len(devices) > 1 and place.isdigit() and int(place) < len(devices):
            kept[name] = devices[int(place)]
    return kept
