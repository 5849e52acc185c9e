"""Ssh, scp and rsync into a running task, over the user's own programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.waits import run_patiently, wait_until

SSHD = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (SSHD and shutil.which("ssh")) and "HOLDFAST_TESTS_NEED_SSH" not in os.environ,
        reason="ssh and sshd are not installed here: apt install openssh-server",
    ),
]


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def job(shared: Cluster, temporary: Path) -> str:
    shared.add_host("inside", cpu_slots=4)
    env = {"COLOUR": "deep 'blue'\nsea", "TMPDIR": str(temporary)}
    job_id = shared.submit("sleep", "600", env=env)
    shared.until(job_id, "running")
    return job_id


class Laptop:
    """A user's machine: a home of its own, with the configuration that `ssh-config` prints."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.home = home
        token = cluster.controller.token_file.read_text().strip()
        self.environment = clean_environment(
            HOLDFAST_URL=cluster.controller.url,
            HOLDFAST_TOKEN=token,
            HOME=str(home),
            XDG_CACHE_HOME=str(home / "cache"),
        )
        self.config = home / "config"
        done = self.run(sys.executable, "-P", "-m", "holdfast.cli", "ssh-config")
        self.config.write_bytes(done.stdout)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        done = run_patiently(
            list(words), capture_output=True, env=self.environment, seconds=60, input=b""
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def ssh(self, host: str, command: str) -> subprocess.CompletedProcess[bytes]:
        return self.run("ssh", "-F", str(self.config), host, "--", command, check=False)


@pytest.fixture(scope="module")
def laptop(shared: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    return Laptop(shared, tmp_path_factory.mktemp("laptop"))


def test_a_command_by_ssh_has_the_jobs_surroundings_and_its_own_exit_code(
    shared: Cluster, job: str, laptop: Laptop
) -> None:
    found = laptop.ssh(
        f"{job}.holdfast", 'printf "%s|" "$COLOUR" "$HOLDFAST_JOB_ID" "$PWD"; exit 7'
    )
    assert found.returncode == 7, found.stderr
    pid = shared.host_of(job).task_pids(job)[0]
    folder = os.readlink(f"/proc/{pid}/cwd")
    assert found.stdout.decode() == f"deep 'blue'\nsea|{job}|{folder}|"


def test_two_connections_at_once_share_no_end_and_leave_no_key(
    shared: Cluster, job: str, laptop: Laptop, temporary: Path, tmp_path: Path
) -> None:
    data = os.urandom(3 << 20)
    (tmp_path / "sent").write_bytes(data)
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "file").write_bytes(data)
    host = f"{job}.holdfast"
    copies = [["scp", "-F", str(laptop.config), str(tmp_path / "sent"), f"{host}:sent"]]
    if shutil.which("rsync"):
        shell = f"ssh -F {laptop.config}"
        copies.append(["rsync", "-a", "-e", shell, f"{tmp_path}/tree/", f"{host}:tree/"])
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda words: laptop.run(*words), copies):
            assert done.returncode == 0
    laptop.run("scp", "-F", str(laptop.config), f"{host}:sent", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data
    folder = Path(os.readlink(f"/proc/{shared.host_of(job).task_pids(job)[0]}/cwd"))
    if len(copies) == 2:
        assert (folder / "tree/deep/file").read_bytes() == data
    wait_until(lambda: not (laptop.home / "cache/holdfast/ssh" / host).exists(), 30)
    wait_until(lambda: not list(temporary.glob("holdfast-ssh.*")), 30)


def test_a_key_of_no_session_at_work_opens_nothing(
    job: str, laptop: Laptop, tmp_path: Path
) -> None:
    """The server takes the key of its own session alone, and no password."""
    laptop.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other"))
    text = laptop.config.read_text()
    line = next(line for line in text.split("\n") if "IdentityFile" in line)
    other = tmp_path / "config"
    other.write_text(text.replace(line, f"  IdentityFile {tmp_path}/other"))
    words = ["ssh", "-F", str(other), f"{job}.holdfast", "--", "true"]
    found = laptop.run(*words, check=False)
    assert found.returncode == 255
    assert b"Permission denied (publickey)" in found.stderr
