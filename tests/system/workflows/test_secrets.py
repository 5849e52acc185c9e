"""Secrets of a workflow's jobs reach their processes and nothing that is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import psycopg
import pytest

from holdfast.client.workflows.build import WorkflowRun
from holdfast.client.workflows.files import read_workflow
from tests.system.cluster import Cluster

pytestmark = pytest.mark.slow

KEY = "correct-horse-battery-staple"
CODE = "import os, sys; print('the key is', os.environ['API_KEY']); sys.exit(not os.path.exists('mended'))"
FLOW = f"""
name = "secretive"

[node.one]
argv = ["{sys.executable}", "-c", "{CODE}"]
cwd = "CWD"
secrets = ["API_KEY"]

[node.two]
shell = 'test "${{OTHER#correct-horse}}" = -battery-staple'
secrets = {{OTHER = "{KEY}"}}
after = "one"
"""


def test_a_secret_of_a_node_is_in_its_process_alone(
    shared: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = shared.client
    host = shared.add_host("secretive", cpu_slots=2)
    file = tmp_path / "flow.toml"
    file.write_text(FLOW.replace("CWD", str(tmp_path)))
    monkeypatch.setenv("API_KEY", KEY)
    run = WorkflowRun(client.submit_workflow(read_workflow(file)), client)
    assert run.wait(60).failed_node == "one"  # it is not mended
    (tmp_path / "mended").touch()
    run.restart()
    assert run.wait(60).state == "succeeded", run.view.reason
    node = run.node("one")
    assert node.spec.job is not None
    assert node.spec.job.spec.secrets == {"API_KEY": ""}
    job = str(node.ref)
    shown = []
    for words in (
        ("workflow", "show", run.id, "--json"),
        ("workflow", "show", run.id, "--node", "one", "--json"),
        ("workflow", "show", run.id, "--node", "two"),
        ("workflow", "mermaid", run.id),
        ("workflow", "why", run.id, "one"),
        ("workflow", "list", "--json"),
        ("show", job, "--json"),
        ("events", "--json"),
        ("logs", job),
    ):
        done = shared.cli(*words)
        assert done.returncode == 0, (words, done.stderr)
        shown.append(done.stdout + done.stderr)
    assert b"the key is " + b"*" * len(KEY) in shown[-1]
    assert not [text for text in shown if KEY.encode() in text]
    files = [path for path in host.state.rglob("*") if path.is_file()]
    left = [path for path in files if KEY.encode() in path.read_bytes()]
    assert {path.name for path in left} <= {"order.json"}  # the agent's own, until it cleans up
    assert {path.stat().st_mode & 0o077 for path in left} <= {0}
    with psycopg.connect(shared.dsn) as connection:
        rows = connection.execute(
            "select table_name from information_schema.tables where table_type = 'BASE TABLE' "
            "and table_schema = 'public' and table_name not in ('job_secrets', 'workflow_secrets')"
        )
        tables = [row[0] for row in rows]
        assert "workflow_nodes" in tables
        for table in tables:
            ask = f"select count(*) from {table} t where t::text like %s"
            assert connection.execute(ask, [f"%{KEY}%"]).fetchone() == (0,), table
