"""Both clients over a real socket: the same calls, the same answers, the same errors."""

from __future__ import annotations

import asyncio
import inspect
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from holdfast.client import AsyncClient, Client
from holdfast.client.jobs.last import remember_last
from holdfast.core.records import CheckpointRecord
from holdfast.core.spec import JobSpec
from holdfast.errors import Conflict, JobFailed, NotFound, Unavailable, ValidationError
from holdfast.wire.logs.lines import LogLine
from tests.unit.cli.stub import JOB, Answer, Stub, events, job_record, outcomes, sent

CREATED = datetime(2026, 1, 1, tzinfo=UTC)


def test_the_two_have_the_same_methods_and_arguments() -> None:
    def shape(kind: type) -> dict[str, list[str]]:
        public = inspect.getmembers(kind, inspect.isfunction)
        return {
            name: list(inspect.signature(f).parameters)
            for name, f in public
            if not name.startswith("_")
        }

    assert shape(Client) == shape(AsyncClient)


def test_sync_submits_waits_and_reads(stub: Stub) -> None:
    stub.on("POST /v1/jobs", Answer(job_record(state="queued"), 201))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record()), Answer(job_record(state="succeeded")))
    stub.on(f"GET /v1/jobs/{JOB}/logs", Answer(b"\x00\xff", kind="application/octet-stream"))
    with Client(stub.url, "t") as client:
        assert client.submit(argv=["x"], memory="1G").id == JOB
        assert client.wait(JOB, 10).state == "succeeded"
        assert b"".join(client.logs(JOB)) == b"\x00\xff"
    assert stub.requests[0].spec.memory_bytes == 1 << 30


async def test_async_submits_waits_and_follows(stub: Stub) -> None:
    line = LogLine(attempt=1, rank=0, stream="stdout", offset=0, data=b"hi")
    done = events(("log", line), ("end", job_record(state="succeeded")))
    stub.on("POST /v1/jobs/batch", Answer({"items": [job_record(state="queued")]}, 201))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record(state="succeeded")))
    stub.on(f"GET /v1/jobs/{JOB}/logs", Answer(done, kind="text/event-stream"))
    stub.on(
        "GET /v1/jobs",
        Answer({"items": [job_record()], "next": "c"}),
        Answer({"items": [], "next": None}),
    )
    async with AsyncClient(stub.url, "t") as client:
        assert [j.id for j in await client.submit_many([JobSpec(argv=("x",))])] == [JOB]
        assert (await client.wait(JOB, 10)).state == "succeeded"
        assert [d async for d in client.logs(JOB, follow=True)] == [b"hi"]
        assert len([j async for j in client.jobs()]) == 1


def test_run_submits_words_and_raises_for_a_job_that_failed(stub: Stub) -> None:
    failed = job_record(state="failed", reason="exit code 9", name="train")
    stub.on("POST /v1/jobs", Answer(job_record(state="queued"), 201))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(failed))
    with Client(stub.url, "t") as client:
        with pytest.raises(JobFailed, match=rf"job {JOB} \(train\) failed: exit code 9") as raised:
            client.run(["python", "train.py"], gpus=1)
        assert getattr(raised.value.job, "id", None) == JOB
        assert client.run(argv=["python", "train.py"], check=False).state == "failed"
        assert client.wait(JOB).state == "failed"
        with pytest.raises(JobFailed):
            client.wait(JOB, check=True)
    assert (stub.requests[0].spec.argv, stub.requests[0].spec.gpus) == (("python", "train.py"), 1)


def test_a_number_that_json_has_no_form_for_is_refused_with_its_place(stub: Stub) -> None:
    """It would be sent as null, which is another value."""
    with Client(stub.url, "t") as client:
        with pytest.raises(ValidationError, match="time_limit_seconds is nan, which has no form"):
            client.submit(JobSpec(argv=("true",), time_limit_seconds=float("nan")))
        with pytest.raises(ValidationError, match="stall_timeout_seconds is inf"):
            client.set_config({"stall_timeout_seconds": float("inf")})
    assert not stub.requests


def test_a_line_is_no_list_of_words(stub: Stub) -> None:
    with Client(stub.url, "t") as client, pytest.raises(ValidationError, match="shell='python t"):
        client.submit("python train.py")
    assert stub.requests == []


async def test_both_find_a_job_by_the_words_of_the_command_line(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record(name="train")))
    stub.on("GET /v1/jobs", Answer({"items": [job_record(name="train")], "next": None}))
    with Client(stub.url, "t") as client:
        remember_last(client.place.url, JOB)
        assert {client.find(word).id for word in ("train", JOB, JOB[:6], "@last")} == {JOB}
    async with AsyncClient(stub.url, "t") as client:
        assert (await client.find("train")).id == JOB
        stub.on("GET /v1/jobs", Answer({"items": [], "next": None}))
        with pytest.raises(NotFound, match="there is no job 'tarin'"):
            await client.find("tarin")


def test_many_jobs_are_cancelled_and_retried_in_one_call(stub: Stub) -> None:
    refused = Conflict("x: it runs")
    stub.on("POST /v1/jobs/cancel", outcomes(job_record(state="cancelled")))
    stub.on("POST /v1/jobs/retry", outcomes(job_record(state="queued"), refused))
    with Client(stub.url, "t") as client:
        (one,) = client.cancel_many([JOB], "enough", hard=True)
        assert (one.id, one.job and one.job.state, one.problem) == (JOB, "cancelled", None)
        assert sent(stub) == {"ids": [JOB], "reason": "enough", "hard": True}
        _, other = client.retry_many([JOB, "x"], counted=True)
        assert (other.id, other.job, other.problem and other.problem.status) == ("x", None, 409)
        assert sent(stub)["counted"] is True


async def test_the_asynchronous_client_cancels_many(stub: Stub) -> None:
    stub.on("POST /v1/jobs/cancel", outcomes(job_record(state="cancelled")))
    async with AsyncClient(stub.url, "t") as client:
        assert [done.id for done in await client.cancel_many([JOB])] == [JOB]


def test_wait_gives_up_in_time(stub: Stub) -> None:
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record()))
    with Client(stub.url, "t") as client, pytest.raises(TimeoutError, match="still running"):
        client.wait(JOB, 0.05)


def test_what_may_not_be_sent_twice_is_not(stub: Stub) -> None:
    stub.on(f"POST /v1/jobs/{JOB}/retry", Answer(job_record(), cut=True))
    with Client(stub.url, "t") as client, pytest.raises(Unavailable):
        client.retry(JOB)
    assert len(stub.requests) == 1


def test_an_unavailable_store_is_tried_again(stub: Stub) -> None:
    away = Answer({"status": 503, "code": "unavailable", "detail": "the store is away"}, 503)
    stub.on(f"GET /v1/jobs/{JOB}", away, away, Answer(job_record()))
    with Client(stub.url, "t") as client:
        assert client.job(JOB).id == JOB
    with Client(stub.url, "t", retry_seconds=0.1) as client:
        stub.on(f"GET /v1/jobs/{JOB}", away)
        with pytest.raises(Unavailable, match="the store is away"):
            client.job(JOB)


def test_a_refusal_keeps_its_code_and_sentence(stub: Stub) -> None:
    problem = {"status": 409, "code": "queue_not_empty", "detail": "queue q has 3 unfinished jobs"}
    stub.on("DELETE /v1/queues/q", Answer(problem, 409))

    async def ask() -> None:
        async with AsyncClient(stub.url, "t") as client:
            await client.delete_queue("q")

    with Client(stub.url, "t") as client, pytest.raises(Conflict, match="3 unfinished") as caught:
        client.delete_queue("q")
    assert caught.value.code == "queue_not_empty"
    with pytest.raises(Conflict, match="3 unfinished"):
        asyncio.run(ask())


def test_an_answer_from_something_else_is_told(stub: Stub) -> None:
    stub.on("GET /v1/queues", Answer(b"<html>", 502, kind="text/html"))
    with (
        Client(stub.url, "t", retry_seconds=0.0) as client,
        pytest.raises(Unavailable, match="HTTP 502"),
    ):
        client.queues()


async def test_both_fetch_a_checkpoint_and_leave_one(stub: Stub, tmp_path: Path) -> None:
    kept = CheckpointRecord(
        job_id=JOB, rank=0, number=1, attempt=1, epoch=1, size=2, sha256="", created_at=CREATED
    )
    stub.on(f"GET /v1/jobs/{JOB}/checkpoint", Answer(b"\x00\xff", kind="application/octet-stream"))
    stub.on(f"PUT /v1/jobs/{JOB}/checkpoint", Answer(msgspec.to_builtins(kept), 201))

    def ask() -> CheckpointRecord:
        with Client(stub.url, "t") as client:
            client.get_checkpoint(JOB, tmp_path / "blocking")
            return client.put_checkpoint(JOB, tmp_path / "blocking", step=7)

    async with AsyncClient(stub.url, "t") as client:
        await client.get_checkpoint(JOB, tmp_path / "asyncio")
        assert await client.put_checkpoint(JOB, tmp_path / "asyncio", step=7) == kept
    assert await asyncio.to_thread(ask) == kept
    assert (tmp_path / "asyncio").read_bytes() == (tmp_path / "blocking").read_bytes() == b"\0\xff"
    left = [(r.path, r.body) for r in stub.requests if r.method == "PUT"]
    assert left == [(f"/v1/jobs/{JOB}/checkpoint?rank=0&step=7", b"\0\xff")] * 2
