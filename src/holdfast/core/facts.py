"""The facts about a task's end, from which `core.endings.classify` finds the cause."""

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Elapsed, Large, Reading, Whole
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.ledger.tally import Tally

Text = Annotated[str, Meta(max_length=4096)]
KEEPER_KILLED = "keeper_killed"
_LOST = {
    "lease_lapsed": "it was silent until the lease had run out",
    "new_incarnation": "Holdfast was started anew there, and what ran under the earlier start ended",
    "host_gone": "it is gone for good",
    "host_preempted": "its provider took it away",
}


def make_lost(word: str, said: str) -> str:
    """Join the word for why a host was lost and its provider's message, as `WORD: MESSAGE`."""
    return f"{word}: {said}"[:1000] if said else word


def is_preempted(why: str | None) -> bool:
    """Return whether a host was taken away by its provider, which is no failure of anything."""
    return why is not None and why.partition(": ")[0] == "host_preempted"


def say_lost(why: str) -> str:
    """Return a sentence for why a host was lost. why: a text of `make_lost`, or a sentence
    already."""
    word, colon, said = why.partition(": ")
    return f"{_LOST[word]}{colon}{said}" if word in _LOST else why


class Trip(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A watchdog's verdict: its exit code is kept on the attempt, `evidence` holds the readings."""

    watchdog: Watchdog
    exit_code: Whole
    reason: Text
    evidence: dict[str, Reading] = {}


class TaskFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The facts about a task's end: from its agent, or from the controller for a lost host.

    exit_code: set when the process exited by itself; with `start_error`, 126 or 127 where the
    program can never be started on its host. signal: number of the signal that ended it.
    oom: the kernel counted an OOM kill in the task's own control group; oom_counted: that count was
    read, so that without `oom` there was none. trip: the verdict of the
    watchdog that ended it. stopped: Holdfast had sent a stop before it ended (a drain), so its exit
    explains nothing. stop_cause: why the agent stopped it without an order (its host shuts down:
    `host_drained`). unkillable: it survived SIGKILL, so its host is suspect.
    start_error: why it could not be started; with `lost` set, because its host lacked something.
    app_error: for an executor, why its host cannot run the functions of its app.
    pull_error: why its image could not be fetched, in the registry's words.
    setup_error: why its code or its environment could not be made ready.
    runtime_error: why the container runtime could not run it.
    checkpoint_error: why its checkpoint could not be fetched, so that it was not started.
    xids: codes that the driver logged for its devices while it ran. ecc_errors: uncorrectable
    memory errors of its devices, counted while it ran. gpu_lost: the error with which a device of
    the task answered. malformed: why the report of its end cannot be used.
    lost: why no report will come: "lease_lapsed", "new_incarnation", "host_gone", "host_preempted",
    "lost_lease", "keeper_killed"; after a colon the provider's message.
    rendezvous_port: the port that Holdfast chose for the first rank to listen on; 0 for other
    ranks.
    ended_ago_seconds: how long before this report it ended, by its host's own clock.
    max_memory_bytes: peak of its memory. memory_limit_bytes: its control group's limit, 0 without
    one. over_memory_bytes: its memory when the agent ended it for using too much; else 0.
    failed_on: the line of its output that its job's `fail_on` forbids; only with exit code 0.
    devices: PCI addresses of the GPUs that it held, empty where it held none, None where they are not
    known. log_tail: the last lines of its output, redacted. notices: remarks for the owner of its job.
    tally: what it spent its time on; None for a brief task that never beat.
    """

    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    oom: bool = False
    oom_counted: bool = False
    trip: Trip | None = None
    stopped: bool = False
    stop_cause: Cause | None = None
    unkillable: bool = False
    start_error: Text | None = None
    app_error: Text | None = None
    pull_error: Text | None = None
    setup_error: Text | None = None
    runtime_error: Text | None = None
    checkpoint_error: Text | None = None
    xids: Annotated[tuple[Whole, ...], Meta(max_length=64)] = ()
    ecc_errors: Large = 0
    gpu_lost: Text | None = None
    failed_on: Text | None = None
    devices: (
        Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=64)] | None
    ) = None
    malformed: Text | None = None
    lost: Text | None = None
    log_tail: Annotated[str, Meta(max_length=16_384)] = ""
    runtime_seconds: Elapsed = 0.0
    rendezvous_port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    ended_ago_seconds: Annotated[float, Meta(ge=0, le=1e18)] = 0.0  # by a clock that may be wrong
    max_memory_bytes: Large = 0
    memory_limit_bytes: Large = 0
    over_memory_bytes: Large = 0
    notices: Annotated[tuple[Text, ...], Meta(max_length=16)] = ()
    tally: Tally | None = None

    @property
    def succeeded(self) -> bool:
        """Return whether the task did its work: it exited 0 by itself, with a usable report and
        without a line that its job fails on."""
        by_itself = self.trip is None and not self.stopped and not self.unkillable
        whole = self.malformed is None and self.app_error is None and self.failed_on is None
        return self.exit_code == 0 and by_itself and whole


LAPSED = "lease_lapsed"
"""The word, in `TaskFacts.lost`, for a lease that lapsed in silence."""


class Classified(msgspec.Struct, frozen=True, kw_only=True):
    """A cause, the rule that found it, a sentence, and the rule's evidence.

    exit_code: the code kept on the attempt (`classify.kept_exit_code`). never_retry, avoid_host:
    further conclusions of an operator's rule.
    """

    cause: Cause
    rule: str
    message: str
    exit_code: int | None
    evidence: dict[str, str | int | float | bool | None] = {}
    never_retry: bool = False
    avoid_host: bool = False
