"""LAID-1…2, BUNDLE-4…5: a folder arrives as it was, is the same for each attempt, and goes on after
kill -9."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.client import Client
from holdfast.client.bundles.send import FolderSender, SendProgress
from holdfast.client.bundles.walk import walk
from holdfast.client.rest import RestCall
from holdfast.core.bundles.code import CodeRef
from holdfast.core.bundles.manifest import FILE, Entry, encode_manifest
from holdfast.errors import Conflict, HoldfastError, NotFound, TooLarge, ValidationError
from tests.system.cluster import Cluster
from tests.system.small_disk import SmallDisk
from tests.system.small_disk import disk as disk
from tests.waits import wait_until

TELL = """
import hashlib, json, os
found = {}
for base, folders, files in os.walk(b"."):
    for name in (*folders, *files):
        path = os.path.join(base, name)[2:]
        status = os.lstat(path)
        kind = status.st_mode >> 12
        what = kind == 8 and hashlib.sha256(open(path, "rb").read()).hexdigest()
        what = os.readlink(path).hex() if kind == 10 else what
        found[path.hex()] = [kind, status.st_mode & 0o777 if kind != 10 else 0, what]
print(json.dumps(found))
"""


def git(folder: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    done = subprocess.run(("git", *own, *words), cwd=folder, check=True, capture_output=True)
    return done.stdout.decode().strip()


def make_checkout(folder: Path, sparse_bytes: int) -> Path:
    """A folder with all that is known to go wrong on the way."""
    inner, top = folder / "lib", folder / "top"
    inner.mkdir(parents=True)
    top.mkdir()
    git(inner, "init", "-q")
    (inner / "lib.py").write_text("LIB = 1\n")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "1")
    git(top, "init", "-q", "-b", "trunk")
    (top / ".gitignore").write_text("*.log\n/dataset/*\n")
    (top / "sub/dataset").mkdir(parents=True)
    (top / "dataset").mkdir()
    (top / "dataset/huge").write_text("stays here")
    (top / "sub/dataset/small").write_text("goes")
    (top / "sub/.gitignore").write_text("!keep.log\n")
    (top / "sub/keep.log").write_text("goes")
    (top / "drop.log").write_text("stays here")
    (top / "tracked.log").write_text("tracked, though ignored")
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 5\n"
    (top / "model.bin").write_text(pointer)
    (top / "run.sh").write_text("#!/bin/sh\n")
    (top / "run.sh").chmod(0o755)
    (top / "inside").symlink_to("sub/keep.log")
    (top / "outside").symlink_to("/etc/hostname")
    (top / "loop").symlink_to("loop")
    (top / "locked").mkdir()
    (top / "locked/file").write_text("x")
    (top / "locked").chmod(0o555)
    Path(os.fsdecode(os.fsencode(top) + b"/n\xff\n")).write_text("a name that is no UTF-8")
    with open(top / "sparse", "wb") as file:
        file.truncate(sparse_bytes)
        file.seek(sparse_bytes // 2)
        file.write(b"a byte in the middle")
    git(top, "add", "-f", "tracked.log")
    git(top, "submodule", "add", "-q", str(inner), "lib")
    git(top, "commit", "-qm", "1")
    return top


def expected(top: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in walk(str(top)).found:
        path, mode = os.path.join(os.fsencode(top), one.path), one.status.st_mode
        kind, what = mode >> 12, False
        if kind == 8:
            with open(path, "rb") as file:
                what = hashlib.file_digest(file, "sha256").hexdigest()
        elif kind == 10:
            what = os.readlink(path).hex()
        found[one.path.hex()] = [kind, mode & 0o777 if kind != 10 else 0, what]
    return found


@pytest.fixture(scope="module")
def home(shared: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with one host; the index of folders is kept in a folder of the test's own."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        shared.add_host("h1")
        yield shared


def test_every_kind_of_file_arrives_as_it_was(home: Cluster, tmp_path: Path) -> None:
    top = make_checkout(tmp_path, 40 << 20)
    wanted = expected(top)
    for name in (b"dataset/huge", b"drop.log"):
        assert name.hex() not in wanted
    for name in (b"sub/dataset/small", b"sub/keep.log", b"tracked.log", b"lib/lib.py", b"n\xff\n"):
        assert name.hex() in wanted
    job = home.client.submit([sys.executable, "-c", TELL], workdir=top)
    home.until(job.id, "succeeded", seconds=60)
    assert json.loads(home.output(job.id)) == wanted
    (attempt,) = home.client.attempts(job.id)
    assert attempt.code is not None
    assert (attempt.code.branch, attempt.code.dirty) == ("trunk", True)
    assert attempt.code.commit == git(top, "rev-parse", "HEAD")
    copy = tmp_path / "copy"
    home.client.restore_code(job.id, copy)
    told = subprocess.run([sys.executable, "-c", TELL], cwd=copy, check=True, capture_output=True)
    assert json.loads(told.stdout) == wanted
    for folder in (top, copy):
        (folder / "locked").chmod(0o755)


def test_a_retry_runs_the_same_code_and_keeps_what_the_job_wrote(
    home: Cluster, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.sh").write_text(
        "cat train.sh | head -1; ls; test -e out || { touch out; echo x > data; exit 3; }\n"
    )
    (folder / "data").write_text("as it was sent\n")
    retry = {"max_retries": 1, "retry_delay": 3.0}
    job = home.client.submit(
        shell="sh train.sh; code=$?; cat data; exit $code", workdir=folder, retry=retry
    )
    wait_until(lambda: any(a.outcome for a in home.client.attempts(job.id)), what="its first end")
    (folder / "train.sh").write_text("echo the folder of today\n")
    home.until(job.id, "succeeded", seconds=40)
    first, second = (home.output(job.id, attempt=n).decode() for n in (1, 2))
    assert first.splitlines()[-1] == "x"
    assert "out" in second.splitlines()
    assert second.splitlines()[-1] == "as it was sent"
    assert "folder of today" not in second
    codes = {attempt.code for attempt in home.client.attempts(job.id)}
    assert len(codes) == 1


def test_a_digest_is_no_key(home: Cluster, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("the other project's")
    client = home.client
    for project in ("mine", "theirs"):
        client.put_project(project, {})
    theirs = client.send_code(tmp_path, project="theirs")
    with pytest.raises(ValidationError, match="project mine holds no bundle"):
        client.submit(["true"], project="mine", code=theirs)
    sha256 = hashlib.sha256(b"the other project's").digest()
    _, manifest = encode_manifest([Entry(b"stolen", FILE, 0o644, 19, sha256)])
    query = (("project", "mine"),)
    with pytest.raises(Conflict, match=r"stolen\. A digest is no key"):
        client.call(RestCall("POST", "/v1/bundles", bytes, query, manifest))
    job = client.submit(["true"], project="theirs", code=theirs)
    with pytest.raises(NotFound, match="needs no pack"):
        client.call(RestCall("GET", f"/v1/jobs/{job.id}/code/packs/06ch2v8wq1m4kz7d9x3t", bytes))
    home.until(job.id, "succeeded", seconds=40)


def test_a_full_store_refuses_with_words_and_touches_no_job(home: Cluster, tmp_path: Path) -> None:
    client = home.client
    client.put_project("small", {"bundle_project_max_mb": 1})
    (tmp_path / "fits").mkdir()
    (tmp_path / "fits/x").write_text("x")
    job = client.submit(["sleep", "2"], project="small", workdir=tmp_path / "fits")
    (tmp_path / "large").write_bytes(os.urandom(2 << 20))
    with pytest.raises(TooLarge, match="the store of code and outputs is full: project small"):
        client.submit(["true"], project="small", workdir=tmp_path)
    again = client.submit(["true"], project="small", workdir=tmp_path / "fits")
    for one in (job.id, again.id):
        home.until(one, "succeeded", seconds=40)


def test_a_full_disk_of_the_controller_is_told_and_the_code_then_goes(
    home: Cluster, tmp_path: Path, disk: SmallDisk
) -> None:
    folder, blobs = tmp_path / "some", home.folder / "blobs"
    folder.mkdir()
    (folder / "data").write_bytes(os.urandom(3 << 20))
    blobs.mkdir(exist_ok=True)
    os.rename(blobs, home.folder / "kept")
    blobs.symlink_to(disk.path)
    token = home.controller.token_file.read_text().strip()
    try:
        disk.fill()
        with (
            Client(home.controller.url, token, retry_seconds=0.1) as client,
            pytest.raises(HoldfastError, match="No space left on device"),
        ):
            client.submit(["true"], workdir=folder)
        disk.free()
        assert not [path for path in disk.path.rglob("*") if path.is_file()]
        job = home.client.submit(["wc", "-c", "data"], workdir=folder)
        home.until(job.id, "succeeded", seconds=40)
        assert home.output(job.id).split()[0] == b"3145728"
    finally:
        blobs.unlink()
        os.rename(home.folder / "kept", blobs)


def test_a_full_disk_of_the_host_is_told_and_the_next_try_is_right(
    home: Cluster, tmp_path: Path, disk: SmallDisk
) -> None:
    """Nothing half-written is left of what was fetched while there was no room."""
    folder = tmp_path / "some"
    folder.mkdir()
    data = os.urandom(3 << 20)
    (folder / "data").write_bytes(data)
    (home.folder / "tiny").symlink_to(disk.path)
    home.set_queue("tiny")
    home.add_host("tiny", queues=["tiny"], labels={"disk": "tiny"})
    disk.fill()
    os.truncate(disk.path / "ballast", (disk.path / "ballast").stat().st_size - (1 << 20))
    job = home.client.submit(
        ["sha256sum", "data"], workdir=folder, queue="tiny", host_labels={"disk": "tiny"}
    )

    def list_reasons() -> list[str]:
        return [attempt.reason or "" for attempt in home.client.attempts(job.id)]

    wait_until(lambda: any("No space left on device" in one for one in list_reasons()), 40)
    packs = disk.path / "code/packs"
    assert not packs.is_dir() or os.listdir(packs) == []
    disk.free()
    home.until(job.id, "succeeded", seconds=60)
    assert home.output(job.id).split()[0] == hashlib.sha256(data).hexdigest().encode()


def test_kill_9_of_controller_agent_and_client_in_the_middle(home: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.bin").write_bytes(os.urandom(4 << 20))
    client = home.client
    token = home.controller.token_file.read_text().strip()
    script = (
        "import os, signal, holdfast.client.bundles.send as s\n"
        "from holdfast.client import Client\n"
        "from holdfast.client.bundles.walk import walk\n"
        "def tell(p):\n    if p.sent > 8e6: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"s.FolderSender(Client({home.controller.url!r}, {token!r}), walk({str(folder)!r}), 'default', 'x', tell=tell).send()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    killed = list[int]()

    def kill(progress: SendProgress) -> None:
        if not killed and progress.sent > 8 << 20:
            killed.append(progress.sent)
            home.controller.kill()
            home.controller.start()

    sent = FolderSender(client, walk(str(folder)), "default", client.place.url, tell=kill).send()
    assert killed
    assert sent.sent < 45 << 20  # what the killed client had sent went once
    told = f"cat *.bin | sha256sum; echo {shlex.quote('done')}"
    job = client.submit(shell=told, code=sent.code)
    host = home.hosts["h1"]
    wait_until(lambda: (home.folder / "h1/code/packs").exists(), what="packs to come", seconds=40)
    host.kill_agent()
    home.until(job.id, "succeeded", seconds=60)
    data = b"".join(p.read_bytes() for p in sorted(folder.iterdir()))
    assert home.output(job.id).decode().split()[0] == hashlib.sha256(data).hexdigest()


def test_a_commit_is_found_at_submission_and_fetched_by_the_host(
    home: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GIT-1…2, over an `ssh` that runs its command here."""
    from holdfast.client.bundles.git import resolve_git

    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "trunk")
    (repository / "train.py").write_text("print('first')\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "1")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    monkeypatch.setenv("GIT_SSH_COMMAND", str(ssh))
    code = resolve_git(f"ssh://git@host{repository}@trunk")
    assert (code.commit, code.branch) == (git(repository, "rev-parse", "HEAD"), "trunk")
    (repository / "train.py").write_text("print('second')\n")
    git(repository, "commit", "-qam", "2")
    env = {"GIT_SSH_COMMAND": str(ssh)}
    job = home.client.submit([sys.executable, "train.py"], code=code, env=env)
    home.until(job.id, "succeeded", seconds=40)
    assert home.output(job.id) == b"first\n"
    gone = msgspec.structs.replace(code, commit="0" * 40)
    lost = home.client.submit(["true"], code=gone, env=env)
    ended = home.until(lost.id, "failed", seconds=60)
    assert ended.cause == "setup_failed"
    assert "git fetch ended with 128" in ended.reason


def test_an_environment_is_made_once_and_its_failure_has_a_cause(
    home: Cluster, tmp_path: Path
) -> None:
    """SETUP-1…2."""
    (tmp_path / "requirements.txt").write_text("one\n")
    setup = "echo made; cp requirements.txt $VIRTUAL_ENV/"
    asks = 'cat "$VIRTUAL_ENV/requirements.txt"'
    said = list[bytes]()
    for _ in range(2):
        job = home.client.submit(shell=asks, workdir=tmp_path, setup=setup)
        home.until(job.id, "succeeded", seconds=90)
        said.append(home.output(job.id))
    assert b"made\n" in said[0]
    assert said[1] == b"one\n"
    (tmp_path / "requirements.txt").write_text("two\n")
    job = home.client.submit(shell=asks, workdir=tmp_path, setup=setup)
    home.until(job.id, "succeeded", seconds=90)
    assert home.output(job.id).endswith(b"two\n")
    failed = home.client.submit(shell="echo never", workdir=tmp_path, setup="echo why >&2; exit 7")
    ended = home.until(failed.id, "failed", seconds=90)
    assert (ended.cause, ended.exit_code) == ("setup_failed", 1)
    assert "ended with exit code 7" in ended.reason
    assert b"why\n" in home.output(failed.id, "stderr")


@pytest.mark.longest
@pytest.mark.skipif(
    not os.environ.get("HOLDFAST_TESTS_LARGE_CODE"), reason="make code-large runs it"
)
def test_a_hundred_thousand_files_and_a_sparse_one_arrive(home: Cluster, tmp_path: Path) -> None:
    top = make_checkout(tmp_path, 2 << 30)
    for number in range(100_000):
        path = top / f"many/{number // 1000:03}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    wanted = expected(top)
    told = TELL.replace(
        "print(json.dumps(found))",
        "print(hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest(), len(found))",
    )
    code: CodeRef = home.client.send_code(top, max_bytes=3 << 30)
    job = home.client.submit([sys.executable, "-c", told], code=code)
    home.until(job.id, "succeeded", seconds=600)
    digest = hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()
    assert home.output(job.id).decode().split() == [digest, str(len(wanted))]
    (top / "locked").chmod(0o755)
