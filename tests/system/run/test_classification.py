"""From what happened on a host to what becomes of the job, with real processes and a real
database."""

from __future__ import annotations

import json
import sys

import pytest

from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow

FAIL_ONCE = "import os, sys; sys.exit(int(os.environ['HOLDFAST_ATTEMPT']) == 1)"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python, GPU has fallen off the bus."
SAY = f"import os, sys; print({XID!r}); sys.exit(int(os.environ['HOLDFAST_ATTEMPT']) == 1)"
SETTINGS_ERROR = "import sys; print('ConfigError: no such key'); sys.exit(64)"


def test_a_broken_gpu_quarantines_its_host_and_the_job_goes_on_elsewhere(shared: Cluster) -> None:
    script = shared.folder / "faults.jsonl"
    script.write_text("")
    shared.set_queue("broken")
    shared.add_host(
        "broken", queues=["broken"], gpus=1, probe=f"scripted:tests.simulated.probe:{script}"
    )
    shared.client.pause_queue("broken")
    job = shared.submit(sys.executable, "-c", FAIL_ONCE, queue="broken", gpus=1)
    script.write_text(json.dumps({"job": job, "faults": {"xids": [45, 79]}}) + "\n")
    shared.client.resume_queue("broken")
    wait_until(
        lambda: shared.client.host("broken").state == "quarantined",
        20,
        what="the host to be quarantined",
    )
    shared.add_host("sound", queues=["broken"], gpus=1)
    shared.until(job, "succeeded")
    first, second = shared.client.attempts(job)
    assert (first.cause, first.rule, first.charged_to) == ("gpu_fault", "gpu-xid", "infra")
    assert "Xid 79: the GPU has fallen off the bus (restart the machine)" in first.reason
    assert second.outcome == "succeeded"
    assert shared.client.host("broken").state == "quarantined"


def test_a_line_in_a_jobs_own_log_quarantines_nothing(shared: Cluster) -> None:
    """PATTERN-3."""
    shared.set_queue("liar")
    shared.add_host("liar", queues=["liar"], gpus=1)
    job = shared.submit(sys.executable, "-c", SAY, queue="liar", gpus=1)
    shared.until(job, "succeeded")
    first = shared.client.attempts(job)[0]
    assert (first.cause, first.rule, first.charged_to) == ("gpu_fault", "log-xid", "infra")
    assert shared.client.host("liar").state == "active"


def test_a_mistake_in_the_program_is_not_tried_again(shared: Cluster) -> None:
    """BUDGET-9."""
    shared.set_queue("typo")
    shared.add_host("typo", queues=["typo"])
    retry = {"max_retries": 3, "retry_delay": 0.0}
    typo = shared.submit(sys.executable, "-c", "optimzer.step()", queue="typo", retry=retry)
    ended = shared.until(typo, "failed")
    assert (ended.cause, ended.attempts) == ("program_error", 1)
    assert "name 'optimzer' is not defined; another attempt would end the same" in ended.reason


def test_an_operators_rule_decides_real_ends(shared: Cluster) -> None:
    shared.set_queue("ruled")
    shared.add_host("ruled", queues=["ruled"])
    shared.client.set_rules(
        '[[rule]]\nname = "config"\npattern = "^ConfigError"\nexit_codes = [64]\nnever_retry = '
        "true\n"
    )
    try:
        job = shared.submit(
            sys.executable,
            "-c",
            SETTINGS_ERROR,
            queue="ruled",
            retry={"max_retries": 3, "retry_delay": 1},
        )
        failed = shared.until(job, "failed")
        assert (failed.attempts, failed.cause) == (1, "nonzero_exit")
        assert "operator:config says it is never retried" in failed.reason
        assert shared.client.attempts(job)[0].rule == "operator:config"
    finally:
        shared.client.set_rules("")
