"""GIT-1: what a job leaves in its folder's repository runs nothing when the next attempt begins."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.agent.bundles.git import fetch_commit
from holdfast.core.bundles.code import CodeRef
from holdfast.errors import Unavailable

_WHO = ("-c", "user.name=n", "-c", "user.email=e@example.com")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ("git", *_WHO, *words), cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def remote(tmp_path: Path) -> tuple[CodeRef, dict[str, str]]:
    """A commit, and the variables by which an `ssh` that runs its command here fetches it."""
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    repository = tmp_path / "remote"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "trunk")
    (repository / "train.py").write_text("print('first')\n")
    (repository / ".gitattributes").write_text("* filter=evil\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "1")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    commit = git(repository, "rev-parse", "HEAD")
    return CodeRef(url=f"ssh://git@host{repository}", commit=commit), {"GIT_SSH_COMMAND": str(ssh)}


def test_a_configuration_that_a_job_wrote_runs_nothing(
    tmp_path: Path, remote: tuple[CodeRef, dict[str, str]]
) -> None:
    code, given = remote
    work, marker = tmp_path / "work", tmp_path / "ran"
    work.mkdir()
    fetch_commit(code, str(work), given, os.environ)
    assert git(work, "rev-parse", "HEAD") == code.commit
    assert git(work, "status", "--porcelain") == ""
    with (work / ".git/config").open("a") as config:
        config.write(
            f'[filter "evil"]\n\tsmudge = touch {marker}; cat\n\tclean = touch {marker}; cat\n'
        )
        config.write(f"[core]\n\tsshCommand = touch {marker}; false\n\tworktree = {tmp_path}\n")
    (work / "train.py").write_text("changed by the job\n")
    (work / "out.pt").write_text("the job's\n")
    del given["GIT_SSH_COMMAND"]  # the commit is here: nothing is fetched
    fetch_commit(code, str(work), given, os.environ)
    assert not marker.exists()
    assert (work / "train.py").read_text() == "print('first')\n"
    assert (work / "out.pt").read_text() == "the job's\n"


def test_a_repository_that_leads_elsewhere_is_replaced_and_not_written_to(
    tmp_path: Path, remote: tuple[CodeRef, dict[str, str]]
) -> None:
    code, given = remote
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (work / ".git").symlink_to(outside)
    with pytest.raises(Unavailable):
        fetch_commit(code, str(work), {"GIT_SSH_COMMAND": "false"}, os.environ)
    fetch_commit(code, str(work), given, os.environ)
    assert os.listdir(outside) == []
    assert not (work / ".git").is_symlink()
    assert git(work, "rev-parse", "HEAD") == code.commit
