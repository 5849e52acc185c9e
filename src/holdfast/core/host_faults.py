"""Abilities that a host lacks now, as it reports itself, until it reports that they are back.

ASIDE-1  A host that cannot start anything gets no work from the moment it reports so; a host that
         cannot start containers gets only jobs without one. Its running tasks go on.
ABLE-1   A host that lists an app and cannot run it (the app's import fails there) reports so after
         a few executors, and gets no more of them until its own trial succeeds
         (`agent.calls.apps`). A call that was tried on such a host is charged nothing, and fails
         only where no other host is left (`core.calls.unable`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.bounds import Count

ANY_RUNTIME = "any"
"""The word for a job in a container that names no runtime."""


class Hindrance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ability of a host that does not work, and why.

    part: "starts": it starts nothing; "containers": no jobs with an image in these `runtimes`
    (`any`: jobs that name no runtime); "apps": no calls of functions of these `apps`. devices: GPUs
    that no task may get, because a container that could not be looked for may still use them.
    """

    part: Literal["starts", "containers", "apps"]
    reason: Annotated[str, Meta(max_length=1024)]
    runtimes: Annotated[tuple[str, ...], Meta(max_length=8)] = ()
    devices: Annotated[tuple[Count, ...], Meta(max_length=1024)] = ()
    apps: Annotated[tuple[str, ...], Meta(max_length=64)] = ()


def is_set_aside(faults: Collection[Hindrance]) -> bool:
    """Return whether the host starts nothing at all."""
    return any(fault.part == "starts" for fault in faults)


def list_lacking(faults: Collection[Hindrance]) -> frozenset[str]:
    """Return the container runtimes that cannot be used on the host, `any` among them."""
    return frozenset(word for fault in faults for word in fault.runtimes)


def list_held(faults: Collection[Hindrance]) -> frozenset[int]:
    """Return the devices that no task may be given."""
    return frozenset(device for fault in faults for device in fault.devices)


def find_runtime_word(image: str | None, runtime: str | None) -> str:
    """Return the container runtime that a job needs, `any` where each will do, "" without an
    image."""
    return "" if image is None else runtime or ANY_RUNTIME


def find_hindrance(faults: Sequence[Hindrance], runtime: str, app: str = "") -> str | None:
    """Return why the host cannot start a job that asks for `runtime`, or an executor of `app`; or
    None."""
    for fault in faults:
        if fault.part == "starts" or runtime in fault.runtimes or app in fault.apps:
            return fault.reason
    return None


APP = "app/"
"""A host that lists the app `mytasks` carries the label `app/mytasks=yes`."""


def list_able_labels(labels: Mapping[str, str], faults: Collection[Hindrance]) -> Mapping[str, str]:
    """Return a host's labels without those of apps that it cannot run now (ABLE-1)."""
    unable = {APP + app for fault in faults for app in fault.apps}
    if not unable:
        return labels
    return {name: value for name, value in labels.items() if name not in unable}


FIRST_PAUSE_SECONDS = 5.0
MAX_PAUSE_SECONDS = 300.0
TRIAL_PAUSE_SECONDS = 30.0
STEADY_SECONDS = 600.0


class Probation(msgspec.Struct, frozen=True, kw_only=True):
    """The standing of one ability of a host: in use, set aside, or on trial. Instants are
    monotonic.

    ASIDE-3  An ability that failed is set aside at once and tried again after 5 s. One that fails
             again within 10 minutes of its return is set aside for twice as long, to 5 minutes, so
             a trial that is too easy costs the jobs ever less.

    reason: why it is set aside, None while it is in use. failures: number of failures in a row.
    changed_at: the instant of its last change. tried: the last trial failed.
    """

    reason: str | None = None
    failures: int = 0
    changed_at: float = -math.inf
    tried: bool = False

    def fail(self, now: float, reason: str) -> Probation:
        """Set the ability aside. Several failures before its trial count as one."""
        if self.reason is not None:
            return msgspec.structs.replace(self, reason=reason)
        steady = now - self.changed_at >= STEADY_SECONDS
        failures = 1 if steady else self.failures + 1
        return Probation(reason=reason, failures=failures, changed_at=now)

    def fail_trial(self, now: float, reason: str) -> Probation:
        """Keep the ability set aside for another pause."""
        count = max(self.failures, 1)
        return Probation(reason=reason, failures=count, changed_at=now, tried=True)

    def pass_trial(self, now: float) -> Probation:
        """Take the ability into use again."""
        if self.reason is None:
            return self
        return Probation(failures=self.failures, changed_at=now)

    @property
    def try_at(self) -> float:
        """Return the instant at which the ability is tried next, infinity while the ability is in
        use."""
        if self.reason is None:
            return math.inf
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self.failures - 1, 10), MAX_PAUSE_SECONDS)
        return self.changed_at + (min(pause, TRIAL_PAUSE_SECONDS) if self.tried else pause)
