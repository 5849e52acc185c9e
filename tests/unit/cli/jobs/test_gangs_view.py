"""`show` draws gangs: of eight ranks and of a thousand, while they run, fall, and afterwards."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tests.unit.cli.stub import JOB, Answer, Stub, job_record


def now() -> datetime:
    """Asked for as late as can be: what is shown of an age has its width."""
    return datetime.now(UTC)


def task(rank: int, **fields: Any) -> dict[str, Any]:
    return {
        "job_id": JOB,
        "rank": rank,
        "epoch": 3,
        "attempt": 2,
        "state": "running",
        "host_id": "h",
        "host_name": f"box-{rank // 4}",
        "devices": [rank % 4],
        "step": 100 + rank,
        "total": 1000,
        "beat_at": (now() - timedelta(seconds=5 + rank)).isoformat(),
        "offered_at": now().isoformat(),
        "claimed_at": now().isoformat(),
        **fields,
    }


def member(rank: int, **fields: Any) -> dict[str, Any]:
    return {"rank": rank, "host": f"box-{rank // 4}", "state": "preempted", **fields}


TRIGGER: dict[str, Any] = {
    "state": "failed",
    "exit_code": 1,
    "cause": "oom_killed",
    "rule": "log-cuda-oom",
    "trigger": True,
    "message": "CUDA out of memory on its GPU",
    "evidence": {"line": "torch.OutOfMemoryError: tried 20 GiB"},
}
FELL: dict[str, Any] = {
    "state": "failed",
    "exit_code": 1,
    "cause": "nonzero_exit",
    "rule": "log-peer",
    "cascade": True,
    "message": "a peer was lost: connection reset",
}


def attempt(number: int, members: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "job_id": JOB,
        "number": number,
        "parent": None if number == 1 else number - 1,
        "epoch": number,
        "state": "ended",
        "outcome": "requeued",
        "cause": "oom_killed",
        "charged_to": "retries",
        "exit_code": 1,
        "host": "box-0, box-1",
        "reason": "rank 3 on box-0: CUDA out of memory on its GPU; retry 1 of 2 in 60 s",
        "members": members,
        "reserved_at": now().isoformat(),
        "started_at": now().isoformat(),
        "ended_at": now().isoformat(),
        **fields,
    }


def serve(
    stub: Stub, live: list[dict[str, Any]], attempts: list[dict[str, Any]], **job: Any
) -> None:
    size = max(len(live), *(len(a["members"]) for a in attempts), 1)
    record = msgspec.to_builtins(job_record(**{"tasks": size, "attempts": len(attempts), **job}))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(record))
    stub.on(f"GET /v1/jobs/{JOB}/tasks", Answer({"items": live, "next": None}))
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": attempts, "next": None}))
    stub.on(
        f"GET /v1/jobs/{JOB}/why",
        Answer({"job_id": JOB, "state": "running", "summary": "it runs", "lines": []}),
    )


FIRST = attempt(
    1, [member(rank, **({3: TRIGGER, 5: FELL, 6: FELL}.get(rank, {}))) for rank in range(8)]
)
RUNS = attempt(
    2,
    [],
    state="running",
    outcome=None,
    cause=None,
    charged_to=None,
    exit_code=None,
    reason="",
    ended_at=None,
)


def rows(text: str, head: str = "RANK") -> list[list[str]]:
    """The cells of the rows under the table's head."""
    lines = text.splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith(head))
    body = lines[begin + 1 :]
    end = next((number for number, line in enumerate(body) if not re.match(r"\d", line)), len(body))
    return [re.split(r" {2,}", line) for line in body[:end]]


def test_a_small_gang_has_a_row_for_each_rank(stub: Stub) -> None:
    serve(
        stub,
        [task(rank) for rank in range(8)],
        [FIRST, RUNS],
        rank_charges={"3": {"retries": 1}},
        retries_charged=1,
        spec={
            "argv": ["x"],
            "tasks": 8,
            "placement": "spread",
            "host_labels": {"gpu": "h100"},
            "preemptible": True,
        },
    )
    done = stub.run("show", JOB)
    assert done.exit_code == 0, done.stderr
    drawn = rows(done.stdout)
    assert [row[0] for row in drawn] == [str(rank) for rank in range(8)]
    assert drawn[5][:5] == ["5", "box-1", "running", "1", "105/1000"]
    assert "attempt 2, running" in done.stdout
    assert "for each of 8 tasks, spread" in done.stdout
    assert re.search(r"only on hosts +gpu=h100", done.stdout)
    assert re.search(r"charged +1 failure \(to rank 3; each rank has its own budget\)", done.stdout)
    assert re.search(r"host +box-0, box-1\n", done.stdout), "each host once"


def test_a_thousand_ranks_fit_a_screen_and_the_odd_one_stands_out(stub: Stub) -> None:
    tasks = [
        task(rank, host_name=f"node-{rank // 8}", devices=[rank % 8], step=50, section=None)
        for rank in range(1000)
    ]
    tasks[437] |= {"section": "eval"}
    serve(stub, tasks, [RUNS])
    done = stub.run("show", JOB)
    drawn = rows(done.stdout)
    assert len(drawn) == 2
    assert drawn[0][:2] == ["0-436, 438-999", "125 hosts"]
    assert drawn[0][2:4] == ["running", "1 each"]
    assert (drawn[1][0], drawn[1][1], drawn[1][-1]) == ("437", "node-54", "in eval")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert len(rows(stub.run("show", JOB, "--ranks").stdout)) == 1000


def test_ranks_of_one_host_share_a_row(stub: Stub) -> None:
    tasks = [task(rank, host_name=f"node-{rank // 8}", devices=[rank % 8]) for rank in range(64)]
    serve(stub, tasks, [RUNS])
    drawn = rows(stub.run("show", JOB).stdout)
    assert [row[0] for row in drawn] == [f"{first}-{first + 7}" for first in range(0, 64, 8)]
    assert drawn[1][1:5] == ["node-1", "running", "0-7", "108-115/1000"]


def test_a_start_shows_who_has_its_place(stub: Stub) -> None:
    closed = {"state": "reserved", "barrier": False, "step": None, "beat_at": None}
    tasks = [
        task(0, **closed),
        task(1, **closed) | {"claimed_at": None},
        task(2, **closed) | {"barrier": True},
    ]
    serve(stub, tasks, [RUNS], state="reserved")
    assert [row[2] for row in rows(stub.run("show", JOB).stdout)] == [
        "claimed",
        "reserved",
        "starting",
    ]


def test_a_fall_that_goes_on_shows_who_began_it(stub: Stub) -> None:
    # The loudest is not the first: rank 1 reports a peer's death before the rank that really died
    # is heard of.
    gone = {"ended_at": now().isoformat()}
    tasks = [
        task(0, state="preempting"),
        task(
            1,
            state="failed",
            facts={"exit_code": 1, "log_tail": "RuntimeError: Connection reset by peer"},
            **gone,
        ),
        task(2, state="failed", facts={"signal": 9}, **gone),
    ]
    serve(
        stub,
        tasks,
        [RUNS],
        state="draining",
        drain_since=now().isoformat(),
        drain_reason="killed by SIGKILL",
        drain_cause="nonzero_exit",
        trigger_rank=1,
    )
    stub.on("GET /v1/rules", Answer({"text": "", "rules": [], "revision": 0}))
    done = stub.run("show", JOB)
    drawn = rows(done.stdout)
    assert drawn[0][2] == "preempting"
    assert drawn[2][-1].startswith("began the fall, as it looks now")
    assert drawn[1][-1].startswith("fell with it")
    assert re.search(r"attempt 1, draining for \S+: killed by SIGKILL", done.stdout)


def test_an_attempt_that_ended_says_who_began_and_by_what_evidence(stub: Stub) -> None:
    serve(stub, [], [FIRST, RUNS], state="queued")
    done = stub.run("show", JOB, "--attempt", "1")
    assert done.exit_code == 0, done.stderr
    drawn = rows(done.stdout)
    assert drawn[3][:5] == ["3", "box-0", "failed", "1", "oom_killed"]
    assert drawn[3][5].startswith("began the fall")
    assert drawn[5][5].startswith("fell with it")
    assert drawn[0][2:6] == ["preempted", "-", "-", "stopped"]
    said = " ".join(done.stdout.split())
    assert (
        "attempt 1, requeued: rank 3 on box-0: CUDA out of memory on its GPU; retry 1 of 2 in 60 s"
        in said
    )
    assert (
        "rank 3 on box-0 began the fall: CUDA out of memory on its GPU (rule log-cuda-oom, line = "
        "torch.OutOfMemoryError: tried 20 GiB)" in said
    )
    assert "ranks 5-6 fell with it, and are charged nothing" in said
    assert "ranks 0-2, 4, 7 were stopped" in said
    # The whole picture of the job draws the last attempt that has something to draw, and says its
    # reason once.
    whole = " ".join(stub.run("show", JOB).stdout.split())
    assert "began the fall" in whole
    assert whole.count("retry 1 of 2 in 60 s") == 1


def test_an_attempt_as_json(stub: Stub) -> None:
    serve(stub, [task(0), task(1)], [FIRST, RUNS])
    first = json.loads(stub.run("show", JOB, "--attempt", "1", "--json").stdout)
    assert (first["attempt"]["members"][3]["trigger"], first["tasks"]) == (True, [])
    second = json.loads(stub.run("show", JOB, "--attempt", "2", "--json").stdout)
    assert [t["rank"] for t in second["tasks"]] == [0, 1]
    (row, _) = json.loads(stub.run("attempts", JOB, "--json").stdout)
    assert [m["rank"] for m in row["members"] if m["cascade"]] == [5, 6]


def test_an_attempt_that_is_not_there(stub: Stub) -> None:
    serve(stub, [], [FIRST])
    done = stub.run("show", JOB, "--attempt", "7")
    assert (done.exit_code, "no attempt 7; it had 1" in done.stderr) == (3, True)
    assert stub.run("show", JOB, "--attempt", "1", "--events").exit_code == 2
    serve(stub, [], [attempt(1, [], outcome="expired", reason="no host asked")])
    assert "nothing of it ran" in stub.run("show", JOB, "--attempt", "1").stdout


def test_a_plain_job_is_drawn_as_before_and_its_attempts_can_be_looked_at(stub: Stub) -> None:
    alone = attempt(
        1, [member(0, **TRIGGER)], reason="CUDA out of memory on its GPU; no retries were asked for"
    )
    serve(stub, [], [alone], state="failed", tasks=1)
    assert "RANK" not in stub.run("show", JOB).stdout
    said = " ".join(stub.run("show", JOB, "--attempt", "1").stdout.split())
    assert "on box-0: CUDA out of memory on its GPU (rule log-cuda-oom" in said
    assert "fall:" not in said
