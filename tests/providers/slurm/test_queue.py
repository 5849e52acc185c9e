"""What squeue prints, in the shapes of several versions, without a Slurm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.fleet.instances import MachineState
from holdfast.providers.interface import ProviderDown
from holdfast.providers.slurm import SlurmJob, read_json, read_text, show_job

COMMENT = "holdfast:here:1m81:spot"
# As 22.05 prints them, and as 23.11 and later do.
OLD = {
    "job_id": 7,
    "job_state": "RUNNING",
    "state_reason": "None",
    "nodes": "n1",
    "name": "a",
    "comment": COMMENT,
    "submit_time": 1780000000,
}
NEW = OLD | {
    "job_state": ["RUNNING"],
    "submit_time": {"set": True, "infinite": False, "number": 1780000000},
}


@pytest.mark.parametrize("job", [OLD, NEW])
def test_each_shape_of_json(job: dict[str, Any]) -> None:
    (found,) = read_json(msgspec.json.encode({"jobs": [job], "errors": []})) or []
    assert (found.id, found.states, found.submitted) == ("7", ("RUNNING",), 1780000000.0)


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"squeue: unrecognized option",
        b"[]",
        b'{"jobs": [{}]}',
        b'{"jobs": 3}',
        b'{"jobs": [{"job_id": 7, "job_state": []}]}',
    ],
)
def test_what_is_no_json_is_no_empty_queue(printed: bytes) -> None:
    assert read_json(printed) is None


def test_the_text_of_a_queue() -> None:
    (job,) = read_text(f"7|PENDING||hf-1|Resources|{COMMENT}|odd\n")
    assert (job.id, job.states, job.comment) == ("7", ("PENDING",), COMMENT + "|odd")
    assert read_text("") == []
    with pytest.raises(ProviderDown, match="no line of a queue"):
        read_text("slurm_load_jobs error")


@pytest.mark.parametrize(
    ("states", "state", "lost"),
    [
        (("PENDING",), MachineState.STARTING, ""),
        (("CONFIGURING",), MachineState.STARTING, ""),
        (("RUNNING",), MachineState.RUNNING, ""),
        (("CANCELLED", "COMPLETING"), MachineState.ENDING, ""),
        (("RUNNING", "COMPLETING"), MachineState.ENDING, ""),
        (("CANCELLED",), MachineState.GONE, ""),
        (("PREEMPTED",), MachineState.GONE, "preempted"),
        (("NODE_FAIL",), MachineState.GONE, "node_failure"),
        (("OUT_OF_MEMORY",), MachineState.GONE, "oom_killed"),
        (("TIMEOUT",), MachineState.GONE, "evicted"),
    ],
)
def test_each_state_has_a_meaning(states: tuple[str, ...], state: MachineState, lost: str) -> None:
    job = SlurmJob(id="7", name="a", states=states, reason="None", nodes="n1", comment=COMMENT)
    machine = show_job(job, "here")
    assert machine is not None
    assert (machine.state, machine.lost, machine.intent, machine.pool) == (
        state,
        lost,
        "1m81",
        "spot",
    )


@pytest.mark.parametrize(
    "comment", ["", "holdfast:there:1m81:spot", "holdfast:here", "backup:here:x:y"]
)
def test_jobs_of_others_are_not_shown(comment: str) -> None:
    job = SlurmJob(id="7", name="a", states=("RUNNING",), reason="", nodes="", comment=comment)
    assert show_job(job, "here") is None
