"""The spec of an executor, the job that Holdfast submits to run calls. Pure.

An executor that ended is never retried: the executors' loop (`controller/loops/calls/executors.py`)
starts another where calls still wait. No job-level watchdog looks at an executor, because its agent
watches each call under the limits of that call's function.
"""

from holdfast.core.calls.values import Family, FunctionSpec
from holdfast.core.host_faults import APP as APP  # re-exported for users of executors
from holdfast.core.placement.eligible import NOT
from holdfast.core.retry import RetryFields
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.spec import JobSpec

AHEAD = "holdfast/ahead"
LENT = "holdfast/lent"
"""The label of an executor that borrows the CPU slot of one whose call waits for another call. Its
value is the number of CPU slots that its family asks for, though this executor reserves none."""
_DEFAULT_CPUS = "default"


def app_label(app: str) -> str:
    """Return the label of hosts that list an app."""
    return APP + app


def list_labels(family: Family) -> dict[str, str]:
    """Return the labels that a host must have, or must not have, to run the family's executors. An
    app that brings its code runs on hosts that do not list it: its label asks for nothing."""
    listed = "yes" if family.code is None else f"{NOT}brought"
    return {app_label(family.app): listed, **family.host_labels}


def read_family(spec: JobSpec, queue: str) -> Family:
    """Return the family that an executor belongs to. queue: the executor's resolved queue."""
    app = find_app(spec)
    labels = {name: value for name, value in spec.host_labels.items() if name != app_label(app)}
    return Family(
        app=app,
        queue=queue,
        project=spec.project,
        gpus=spec.gpus,
        cpus=_read_cpus(spec),
        memory_bytes=spec.memory_bytes,
        host_labels=dict(sorted(labels.items())),
        code=spec.code,
    )


def _read_cpus(spec: JobSpec) -> int | None:
    lent = spec.labels.get(LENT)
    if lent is None:
        return spec.cpus
    return None if lent == _DEFAULT_CPUS else int(lent)


def make_executor_spec(family: Family, *, ahead: bool = False, lent: bool = False) -> JobSpec:
    """Return the spec of one executor.

    ahead: it is started before there are calls, and stays when idle. lent: it borrows the CPU slot
    of an executor whose call waits for another call (PLAN-7).
    """
    labels = {AHEAD: "yes"} if ahead else {}
    if lent:
        labels[LENT] = _DEFAULT_CPUS if family.cpus is None else str(family.cpus)
    return JobSpec(
        executor=family.name,
        name=f"executor of {family.app}"[:128],
        queue=family.queue,
        project=family.project,
        gpus=family.gpus,
        cpus=0 if lent else family.cpus,
        memory_bytes=family.memory_bytes,
        host_labels=list_labels(family),
        code=family.code,
        labels=labels,
        time_limit_seconds="off",
        stall_timeout_seconds="off",
        silence_limit_seconds="off",
        first_beat_timeout_seconds="off",
        no_progress_limit="off",
        retry=RetryFields(max_retries=0, eligible_causes=()),
    )


def as_job(spec: FunctionSpec) -> JobSpec:
    """Return a job's spec with the settings of a function, because settings are resolved for
    jobs."""
    return JobSpec(
        project=spec.project,
        gpus=spec.gpus,
        time_limit_seconds=spec.time_limit_seconds,
        stall_timeout_seconds=spec.stall_timeout_seconds,
        silence_limit_seconds=spec.silence_limit_seconds,
        first_beat_timeout_seconds=spec.first_beat_timeout_seconds,
        watchdog_cap=spec.watchdog_cap,
        retry=spec.retry,
    )


def find_app(spec: JobSpec) -> str:
    """Return the app of an executor."""
    names = (n for n in spec.host_labels if n.startswith(APP))
    return next(names, "").removeprefix(APP)


def find_listed_app(spec: JobSpec) -> str:
    """Return the app that an executor's hosts must list; empty where its code is brought along."""
    return "" if spec.code is not None else find_app(spec)


def is_ahead(spec: JobSpec) -> bool:
    """Return whether the executor was started before there were calls."""
    return AHEAD in spec.labels


def is_lent(spec: JobSpec) -> bool:
    """Return whether the executor borrows another executor's CPU slot."""
    return LENT in spec.labels


def unwatched(watch: WatchSettings) -> WatchSettings:
    """Return the watch settings of an executor: no watchdogs; logs and grace as in `watch`."""
    return WatchSettings(
        stall_watch=False,
        stall_timeout_seconds=None,
        silence_limit_seconds=None,
        health_watch="off",
        grace_seconds=watch.grace_seconds,
        forensics_seconds=watch.forensics_seconds,
        log_keep_mb=watch.log_keep_mb,
        log_disk_mb=watch.log_disk_mb,
    )
