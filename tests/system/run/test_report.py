"""A report of a real controller and a real host: it adds up to the ledger, costs what the host costs,
and a spent budget holds the project's next job."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest

from holdfast.core.report.rows import HoursReport
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.longest]

WORK = textwrap.dedent(
    """
    import time
    import holdfast
    for step in range(1, 10):
        time.sleep(0.2)
        holdfast.beat(step=step, total=9)
    """
)


def test_a_real_jobs_hours_are_told_priced_and_charged_to_its_budget(cluster: Cluster) -> None:
    client = cluster.client
    client.set_config({"gpu_hour_usd": 3600.0})  # a dollar a second
    client.put_project("vision", {"budget_usd_per_month": 0.5, "at_budget": "hold"})
    cluster.add_host("gpubox", gpus=2)
    fields = {"name": "train", "project": "vision", "gpus": 1}
    job_id = client.submit(argv=[sys.executable, "-c", WORK], **fields).id
    cluster.until(job_id, "succeeded")

    def look() -> HoursReport | None:
        found = client.report(by=["job"], project="vision")
        return found if found.rows and not found.total.provisional else None

    found = wait_until(look, 180, what="the ledger to close the minute")
    (row,) = found.rows
    assert (row.key, row.name) == ((job_id,), "train")
    (attempt,) = client.attempts(job_id)
    assert attempt.ended_at is not None
    held = (attempt.ended_at - attempt.reserved_at).total_seconds()
    assert abs(row.hours * 3600 - held) < 1.0
    assert row.usd == pytest.approx(row.hours * 3600)
    assert row.by_name["kept"] > 0
    assert row.goodput is not None

    client.put_project("vision", {"at_budget": "hold"})  # a change is judged at once
    wait_until(lambda: client.project("vision").held, 60, what="the budget to be judged")
    waits = client.submit(argv=["true"], **fields).id
    why = cluster.cli("why", waits)
    assert b"project vision has spent its budget of $0.50" in why.stdout
    shown = json.loads(cluster.cli("report", "--json", "--by", "owner").stdout)
    assert shown["total"]["by_name"]["kept"] > 0
    page = cluster.cli("report", "--html", "-").stdout.decode()
    assert page.startswith("<!doctype html>")
    assert "<script" not in page
    client.put_project("vision", {"at_budget": "notice"})
    cluster.until(waits, "succeeded")
