"""One rank of a job that `holdfast supervise` submitted: what its agent tells it, and what it becomes.

SEED-1  Every rank derives the keys of its attempt from the job's seed; the seed, and the words meant for the rank itself
          (its rank, the rendezvous, which is the supervisor's port), are in no environment that anything below it inherits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from holdfast.core.run_seed import SEED_VARIABLE
from holdfast.errors import ValidationError
from holdfast.supervisor.keys import RunKeys, derive_keys

TERM_MARGIN_SECONDS = 2.0  # what a manager keeps of the job's grace to say how its processes ended
_FOR_THE_RANK = frozenset(
    [
        SEED_VARIABLE, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
        "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID",
    ]
)  # fmt: skip
_DEVICES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one attempt.

    hosts: how many ranks there are. address, port: where rank 0's script listens. machine, labels: the host's, as Holdfast
    knows it. grace_seconds: what the job has between TERM and KILL.
    """

    rank: int
    hosts: int
    job_id: str
    attempt: int
    seed: bytes
    address: str
    port: int
    machine: str | None = None
    labels: dict[str, str] = {}
    grace_seconds: float | None = None

    @property
    def url(self) -> str:
        """What its host manager dials."""
        where = f"[{self.address}]" if ":" in self.address else self.address
        return f"tcp://{where}:{self.port}"

    @property
    def term_grace_seconds(self) -> float | None:
        """What processes have between TERM and KILL at a drain: nearly all of the job's grace, so that they can save."""
        grace = self.grace_seconds
        return None if grace is None else max(grace - TERM_MARGIN_SECONDS, grace / 2)

    def make_keys(self) -> RunKeys:
        """The keys of this attempt."""
        return derive_keys(self.seed, self.job_id, self.attempt)


def read_member(environ: Mapping[str, str]) -> Member:
    """Read what the agent says.

    Raises:
        ValidationError: this is no rank of a supervised job.
    """
    try:
        return Member(
            rank=int(environ["RANK"]),
            hosts=int(environ["WORLD_SIZE"]),
            job_id=environ["HOLDFAST_JOB_ID"],
            attempt=int(environ["HOLDFAST_ATTEMPT"]),
            seed=bytes.fromhex(environ[SEED_VARIABLE]),
            address=environ["MASTER_ADDR"],
            port=int(environ["MASTER_PORT"]),
            machine=environ.get("HOLDFAST_HOST_NAME") or None,
            labels=msgspec.convert(json.loads(environ.get("HOLDFAST_HOST_LABELS") or "{}"), dict[str, str]),
            grace_seconds=float(environ["HOLDFAST_GRACE"]) if environ.get("HOLDFAST_GRACE") else None,
        )
    except KeyError as error:
        raise ValidationError(
            f"{error.args[0]} is not set: `supervised-member` is what the ranks of a job run that was submitted by "
            "`holdfast supervise`",
            field=str(error.args[0]),
        ) from None
    except (ValueError, msgspec.ValidationError) as error:
        # The words of the error may hold the seed.
        raise ValidationError(
            "the environment of this rank cannot be read; is its agent of another version?"
        ) from error


def clean_environment(environ: Mapping[str, str], gpus: int) -> dict[str, str]:
    """What the script, the host managers and their processes inherit (SEED-1). `gpus`: of each rank.

    A rank with one device sees those of all ranks on its host, for scripts that take device LOCAL_RANK; its host manager
    offers its own alone.
    """
    kept = {name: value for name, value in environ.items() if name not in _FOR_THE_RANK}
    for name in _DEVICES:
        devices = kept.get(name, "").split(",")
        place = environ.get("LOCAL_RANK", "")
        if gpus == 1 and len(devices) > 1 and place.isdigit() and int(place) < len(devices):
            kept[name] = devices[int(place)]
    return kept
