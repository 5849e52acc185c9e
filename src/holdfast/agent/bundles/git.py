"""Fetch a commit of a git repository into a job's work folder, as the job's user.

GIT-1  Only https and ssh are spoken, no hook or helper of a repository runs, no configuration of
       this machine is read, and no word of a user is taken for an option. The work folder's `.git` is
       a copy for the job: git itself works in a repository that no job can reach, because words that a
       job writes into a configuration, from within its container too, would run on this host.
GIT-2  Credentials come from the job's secrets: GIT_TOKEN for https, GIT_SSH_KEY for ssh. These
       stand in the environment or in a file (0600) that is deleted, and in no argument.
"""

import base64
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.bundles.code import CodeRef, check_code
from holdfast.errors import Unavailable, ValidationError
from holdfast.process.files import write_atomic

FETCH_SECONDS = 900.0
_SAFE = (
    "-c", "protocol.allow=never", "-c", "protocol.https.allow=always", "-c", "protocol.ssh.allow=always",
    "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "submodule.recurse=false",
    "-c", "advice.detachedHead=false", "-c", "gc.auto=0",
)  # fmt: skip
_PASSED = ("PATH", "HOME", "USER", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "SSH_AUTH_SOCK")
_OF_USER = ("GIT_SSH_COMMAND", "GIT_SSH", "SSH_AUTH_SOCK", "https_proxy", "HTTPS_PROXY", "no_proxy")
_FINAL = (
    "not our ref",
    "not found",
    "does not exist",
    "Authentication failed",
    "could not read Username",
)


def fetch_commit(
    code: CodeRef, folder: str, given: Mapping[str, str], environ: Mapping[str, str]
) -> list[bytes]:
    """Make a folder hold the files of a commit; files that a job wrote beside them stay. Return the
    paths of these files, and that of the repository. given: the job's variables and secrets.

    Raises:
        ValidationError: the commit cannot be fetched. Unavailable: it cannot be fetched now.
    """
    check_code(code)
    with _credentials(given) as more, tempfile.TemporaryDirectory(prefix="holdfast-git-") as own:
        env = {name: environ[name] for name in _PASSED if name in environ}
        env |= {name: given[name] for name in _OF_USER if name in given}
        env |= {**more, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
                "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}  # fmt: skip
        _run(folder, env, "init", "--quiet", "--template=", "--", own)
        repository, left = f"{own}/.git", f"{folder}/.git"
        env |= {"GIT_DIR": repository, "GIT_WORK_TREE": folder}
        env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = f"{left}/objects"
        is_new = _start(folder, env, "cat-file", "-e", f"{code.commit}^{{tree}}").returncode != 0
        if is_new:
            del env["GIT_ALTERNATE_OBJECT_DIRECTORIES"]
            words = ("fetch", "--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules")
            _run(folder, env, *words, "--", code.url, code.commit)
        _run(folder, env, "update-ref", "--no-deref", "HEAD", code.commit)
        _run(folder, env, "read-tree", code.commit)
        _start(folder, env, "update-index", "-q", "--refresh")  # what is right is not written anew
        _run(folder, env, "checkout", "--quiet", "--force", code.commit, "--", ".")
        listed = _start(folder, env, "ls-files", "-z").stdout
        if is_new:
            _place(repository, left)
    return [b".git", *(path for path in listed.split(b"\0") if path)]


def _place(repository: str, left: str) -> None:
    """Give the job a copy of the repository, in the place of what stands there. Raises OSError."""
    new = f"{left}.holdfast-new"
    for path in (new, left):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)
    shutil.copytree(repository, new)
    os.rename(new, left)


def _run(folder: str, env: Mapping[str, str], *words: str) -> None:
    done = _start(folder, env, *words)
    if done.returncode:
        text = done.stderr.decode(errors="replace").strip()
        why = f"git {words[0]} ended with {done.returncode}: {text[-600:]}"
        if any(word in text for word in _FINAL):
            raise ValidationError(why, code="git_failed")
        raise Unavailable(why, code="git_failed")


def _start(folder: str, env: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ("git", *_SAFE, *words), cwd=folder, env=dict(env), stdin=subprocess.DEVNULL,
            capture_output=True, timeout=FETCH_SECONDS,
        )  # fmt: skip
    except FileNotFoundError:
        raise ValidationError("there is no git on this host", code="git_failed") from None
    except subprocess.TimeoutExpired:
        why = f"git {words[0]} took longer than {FETCH_SECONDS:g} s"
        raise Unavailable(why, code="git_failed") from None


@contextmanager
def _credentials(given: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Yield the variables by which git signs in to the repository (GIT-2)."""
    more: dict[str, str] = {}
    if token := given.get("GIT_TOKEN"):
        user = given.get("GIT_USER", "x-access-token")
        words = base64.b64encode(f"{user}:{token}".encode()).decode()
        more |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.extraHeader",
                 "GIT_CONFIG_VALUE_0": f"Authorization: Basic {words}"}  # fmt: skip
    if not (key := given.get("GIT_SSH_KEY")):
        yield more
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-git-") as folder:
        path = os.path.join(folder, "key")
        write_atomic(Path(path), key.rstrip("\n").encode() + b"\n")
        options = "-o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=accept-new"
        yield {**more, "GIT_SSH_COMMAND": f"ssh -i {path} {options}"}
