"""`examples/dead-hosts`: the script restarts a host that the controller holds for dead, and nothing
else."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.waits import run_patiently, wait_until

EXAMPLE = Path(__file__).parents[3] / "examples/dead-hosts"
pytestmark = pytest.mark.slow


class Reviver:
    """The script, with a command that leaves a line for each try."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.record = folder / "tries"
        self.tried = folder / "tried"
        self._token = cluster.client.create_token("read").secret
        self.url = cluster.controller.url

    def look(self, *options: str, command: str = "true") -> tuple[int, int, str]:
        """Look once: the exit code, the tries so far, and what the script said."""
        environment = clean_environment(
            HOLDFAST_URL=self.url,
            HOLDFAST_TOKEN=self._token,
            PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        )
        words = [str(EXAMPLE / "revive_host.py"), "--record", str(self.record), *options]
        words += ["--", "sh", "-c", f"echo x >> {self.tried}; {command}"]
        done = run_patiently(words, env=environment, capture_output=True, text=True, seconds=90)
        tries = self.tried.read_text().count("x") if self.tried.exists() else 0
        return done.returncode, tries, done.stdout + done.stderr


def test_a_dead_host_is_restarted_a_bounded_number_of_times(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.client.set_config({"dead_host_seconds": 2, "dead_host_sweep_seconds": 1})
    host = cluster.add_host("h", queues=[cluster.set_queue("q")])
    cluster.until(cluster.submit("sleep", "60", queue="q"), "running")
    reviver, here = Reviver(cluster, tmp_path), ("--state", str(host.state))
    assert reviver.look(*here) == (0, 0, ""), "it lives"

    def is_flagged() -> bool:
        return [entry.name for entry in cluster.client.hosts(dead=True)] == ["h"]

    # The agent wakes first: its guardian would end an agent that was silent for 30 s.
    pids = " ".join(str(pid) for pid in reversed(host.freeze()))
    wait_until(is_flagged, 15, what="the flag")
    assert reviver.look("--host", "another") == (0, 0, ""), "another host is none of its business"
    assert reviver.look(*here, command="exit 7")[:2] == (1, 1)
    code, tries, said = reviver.look(*here)
    assert (code, tries) == (0, 1)
    assert "less than 600 s ago" in said
    assert reviver.look("--host", "h", "--pause", "0")[:2] == (0, 2), "by name, the pause over"
    code, tries, said = reviver.look(*here, "--pause", "0", "--tries", "2")
    assert (code, tries) == (2, 2)
    assert "look at it" in said
    url, reviver.url = reviver.url, "http://127.0.0.1:1"
    assert reviver.look(*here, "--pause", "0")[:2] == (1, 2), "no answer is no reason"
    reviver.url = url
    kept, reviver.record = reviver.record, tmp_path
    assert reviver.look(*here, "--pause", "0")[:2] == (1, 2), "without a record no try is made"
    reviver.record = kept
    code, tries, said = reviver.look(*here, "--pause", "0", command=f"kill -CONT {pids}")
    assert (code, tries) == (0, 3), said
    wait_until(lambda: not is_flagged(), 10, what="the flag to be cleared by a heartbeat")
    assert reviver.look(*here, "--pause", "0") == (0, 3, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in EXAMPLE.glob("holdfast-revive.*"):
        text = unit.read_text().replace(
            "/usr/local/bin/holdfast-revive", str(EXAMPLE / "revive_host.py")
        )
        (tmp_path / unit.name).write_text(text)
    units = sorted(tmp_path.iterdir())
    assert len(units) == 2
    done = run_patiently(
        ["systemd-analyze", "verify", "--man=no", *map(str, units)],
        capture_output=True,
        text=True,
        seconds=60,
    )
    named = [line for line in done.stderr.splitlines() if "holdfast" in line]
    assert (done.returncode, named) == (0, [])
