"""Machines that are jobs of a Slurm cluster: an agent inside of a batch job.

The marks of a machine are in the job's comment. Slurm has no idempotency, so the queue is read before
each submission (RENT-2). A job is never queued again by Slurm, because Holdfast makes the next one;
so a preempted job and one whose node failed each end in a state of their own.
"""

import getpass
import os
import re
import shlex
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.core.fleet.instances import CreateOrder, Machine, MachineState, Offer, Quote
from holdfast.providers.calls import ProgramEnd, run_program
from holdfast.providers.config import (
    TOKEN,
    GpuWord,
    ProviderConfig,
    agent_env,
    agent_words,
    check_order,
    hide,
    overlay,
)
from holdfast.providers.interface import NoCapacity, ProviderDown, Refused

_STATE = "@STATE@"
_MARK = "holdfast"
# The states of `man squeue`; a job in any other state has ended.
_STATES = {
    "PENDING": MachineState.STARTING,
    "CONFIGURING": MachineState.STARTING,
    "RUNNING": MachineState.RUNNING,
    "SUSPENDED": MachineState.RUNNING,
    "STOPPED": MachineState.RUNNING,
    "RESIZING": MachineState.RUNNING,
    "SIGNALING": MachineState.RUNNING,
    "COMPLETING": MachineState.ENDING,
    "STAGE_OUT": MachineState.ENDING,
}
_LOST = {
    "PREEMPTED": "preempted",
    "NODE_FAIL": "node_failure",
    "BOOT_FAIL": "node_failure",
    "OUT_OF_MEMORY": "oom_killed",
    "TIMEOUT": "evicted",
    "DEADLINE": "evicted",
}
# The messages by which sbatch reports that nothing was submitted. Any other is unknown.
_FULL = re.compile(
    r"QOSMax|AssocMax|AssocGrp|job submit limit|violates accounting/QOS policy", re.I
)
_BAD = re.compile(
    r"invalid (partition|account|qos|feature|generic resource|constraint|time)|not available|"
    r"unrecognized option|invalid option|invalid --|requested .* (not|invalid)|access/permission denied|"
    r"more processors requested|memory specification",
    re.I,
)


class SlurmConfig(ProviderConfig, frozen=True, kw_only=True):
    """See docs/guides/providers-slurm.md."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_limit: str | None = None
    gres: str | None = None
    options: list[str] = msgspec.field(default_factory=list)
    warn_seconds: Annotated[int, Meta(ge=0, le=65535)] = 60
    python: str = "python3"
    gpus: GpuWord = "auto"
    setup: str = ""
    state: str = "${TMPDIR:-/tmp}/holdfast-$SLURM_JOB_ID"
    workdir: str = "/tmp"
    log: str = "holdfast-%j.log"
    env: dict[str, str] = msgspec.field(default_factory=dict)


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of this user. states: more than one where Slurm reports so, such as CANCELLED and
    COMPLETING."""

    id: str
    name: str
    states: tuple[str, ...]
    reason: str
    nodes: str
    comment: str
    submitted: float | None = None


class SlurmProvider:
    """Machines that are jobs of a Slurm cluster; see the module."""

    kind = "slurm"
    tells_prices = False

    def __init__(self, config: SlurmConfig, installation: str) -> None:
        self._config = config
        self._installation = installation

    async def quote(self, offers: tuple[Offer, ...]) -> tuple[Quote, ...]:
        """Return the offers' own prices (see `Provider`). Availability is unknown, because Slurm
        queues a job that does not fit."""
        return tuple(Quote(offer=offer.name, usd_per_hour=offer.usd_per_hour) for offer in offers)

    async def create(self, order: CreateOrder) -> Machine:
        """Submit a job (see `Provider`)."""
        check_order(order, self._installation)
        config = overlay(self.kind, self._config, order.offer)
        for known in await self.list_machines():
            if known.intent == order.intent:
                return known
        done = await self._run(
            ["sbatch", *_make_words(order, config)], _make_script(order, config).encode()
        )
        if done.code != 0:
            said = hide(done.complaint, order.env[TOKEN])
            message = f"sbatch refused {order.name}: {said}"
            if _FULL.search(said):
                raise NoCapacity(message)
            raise Refused(message) if _BAD.search(said) else ProviderDown(message)
        number = done.stdout.decode(errors="replace").strip().split(";")[0]
        if not number.isdigit():
            raise ProviderDown(f"sbatch answered {number[:200]!r} for {order.name}")
        return Machine(
            ref=number,
            intent=order.intent,
            pool=order.pool,
            name=order.name,
            state=MachineState.STARTING,
            usd_per_hour=order.offer.usd_per_hour,
        )

    async def list_machines(self) -> tuple[Machine, ...]:
        """Return the jobs (see `Provider`). Jobs that ended are shown for as long as Slurm knows
        them (MinJobAge)."""
        found = (show_job(job, self._installation) for job in await self._read_jobs())
        return tuple(machine for machine in found if machine is not None)

    async def get_machine(self, ref: str) -> Machine | None:
        """Return one job (see `Provider`)."""
        return next((m for m in await self.list_machines() if m.ref == ref), None)

    async def terminate(self, ref: str) -> None:
        """Cancel a job (see `Provider`) by `scancel`: TERM to the agent, Slurm's KillWait, KILL."""
        machine = await self.get_machine(ref)
        if machine is None or machine.state is MachineState.GONE:
            return
        done = await self._run(["scancel", ref])
        if done.code != 0 and "Invalid job id" not in done.complaint:
            raise ProviderDown(f"scancel {ref} failed: {done.complaint}")

    async def close(self) -> None:
        """Do nothing: there is no connection to close."""

    async def _read_jobs(self) -> list[SlurmJob]:
        """Read the queue as JSON, or as text where this Slurm has no JSON."""
        user = getpass.getuser()
        words = ["squeue", f"--user={user}", "--states=all"]
        done = await self._run([*words, "--json"])
        if done.code == 0:
            found = read_json(done.stdout)
            if found is not None:
                return found
        done = await self._run([*words, "--noheader", f"--format={_FORMAT}"])
        if done.code != 0:
            raise ProviderDown(f"squeue failed: {done.complaint}")
        return read_text(done.stdout.decode(errors="replace"))

    async def _run(self, words: list[str], input: bytes = b"") -> ProgramEnd:
        ours = {
            k: v
            for k, v in os.environ.items()
            if not k.startswith(("HOLDFAST_", "SBATCH_", "SQUEUE_"))
        }
        env = ours | self._config.env
        return await run_program(words, seconds=self._config.deadline_seconds, env=env, input=input)


def _make_words(order: CreateOrder, config: SlurmConfig) -> list[str]:
    offer = order.offer
    comment = ":".join([_MARK, order.installation, order.intent, order.pool])
    # NIL, because the job must not get the controller's environment.
    words = ["--parsable", "--no-requeue", "--export=NIL", "--nodes=1", "--ntasks=1"]
    words += [f"--job-name={order.name}", f"--comment={comment}", f"--chdir={config.workdir}"]
    words += [f"--output={config.log}", f"--cpus-per-task={max(1, offer.cpu_slots)}"]
    gres = config.gres
    if gres is None and offer.gpus:
        gres = ":".join(["gpu", *([offer.gpu_type] if offer.gpu_type else []), str(offer.gpus)])
    optional = {
        "gres": gres,
        "mem": f"{offer.memory_bytes >> 20}M" if offer.memory_bytes else None,
        "partition": config.partition,
        "account": config.account,
        "qos": config.qos,
        "constraint": config.constraint,
        "time": config.time_limit,
        "signal": f"B:TERM@{config.warn_seconds}" if config.warn_seconds else None,
    }
    words += [f"--{name}={value}" for name, value in optional.items() if value]
    return [*words, *config.options]


def _make_script(order: CreateOrder, config: SlurmConfig) -> str:
    """Return the batch script, which is sent over sbatch's input, because other users can read
    arguments."""
    words = ["-P", "-m", "holdfast", *agent_words(order, state=_STATE, gpus=config.gpus)]
    command = shlex.join([config.python, *words]).replace(_STATE, '"$state"')
    exports = [f"export {name}={shlex.quote(v)}" for name, v in sorted(agent_env(order).items())]
    path = "export PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}"
    lines = ["#!/bin/sh", path, *exports, f'state="{config.state}"', config.setup]
    return "\n".join([*lines, f"exec {command}", ""])


def show_job(job: SlurmJob, installation: str) -> Machine | None:
    """Return a job as a machine; None where the job is not this installation's."""
    words = job.comment.split(":")
    if len(words) != 4 or words[:2] != [_MARK, installation]:
        return None
    known = [_STATES[state] for state in job.states if state in _STATES]
    state = known[-1] if known else MachineState.GONE
    if MachineState.ENDING in known:
        state = MachineState.ENDING
    reason = "" if job.reason in ("", "None") else f" ({job.reason})"
    return Machine(
        ref=job.id,
        intent=words[2],
        pool=words[3],
        name=job.name,
        state=state,
        reason=f"{'+'.join(job.states)}{reason}{' on ' + job.nodes if job.nodes else ''}",
        lost=next((_LOST[s] for s in job.states if s in _LOST), ""),
        created_at=datetime.fromtimestamp(job.submitted, UTC) if job.submitted else None,
    )


# ---- squeue

# The comment is last, because it may hold anything; a line break it cannot hold.
_FORMAT = "%i|%T|%N|%j|%r|%k"


def read_text(printed: str) -> list[SlurmJob]:
    """Read lines of `_FORMAT`. Raises ProviderDown for a line of another form."""
    jobs = []
    for line in printed.splitlines():
        words = line.split("|", 5)
        if len(words) != 6:
            raise ProviderDown(f"squeue printed {line[:200]!r}, which is no line of a queue")
        number, state, nodes, name, reason, comment = words
        jobs.append(
            SlurmJob(
                id=number, name=name, states=(state,), reason=reason, nodes=nodes, comment=comment
            )
        )
    return jobs


def read_json(printed: bytes) -> list[SlurmJob] | None:
    """Read the output of `squeue --json`; None where it is no JSON. Its shape differs between
    Slurm's versions: states became lists, and numbers objects."""
    try:
        whole = msgspec.json.decode(printed)
        return [_read_job(job) for job in whole["jobs"]]
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
        return None


def _read_job(job: dict[str, Any]) -> SlurmJob:
    states = job["job_state"]
    submitted = job.get("submit_time")
    if isinstance(submitted, dict):
        submitted = submitted.get("number") if submitted.get("set") else None
    return SlurmJob(
        id=str(int(job["job_id"])),
        name=str(job.get("name") or ""),
        states=tuple(_as_words(states)),
        reason=str(job.get("state_reason") or ""),
        nodes=str(job.get("nodes") or ""),
        comment=str(job.get("comment") or ""),
        submitted=float(submitted) if submitted else None,
    )


def _as_words(states: str | Iterable[str]) -> list[str]:
    found = [states] if isinstance(states, str) else [str(state) for state in states]
    if not found:
        raise ValueError("a job without a state")
    return found
